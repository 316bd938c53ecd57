#include "ceph/exchange/shard_export.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "ceph/exchange/exact_text.h"
#include "ceph/exchange/leaf_types.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr char kReserved[] = "__metadata__";

void ReplaceAll(std::string* text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text->find(what, at)) != std::string::npos; at += by.size())
    text->replace(at, what.size(), by);
}

// A leaf of a state is called by its path, "/model/0.weight": the keys with dots between here, as other programs have it.
std::string NameOf(const std::string& entry) {
  if (entry == "/") return "state";
  std::string name = PrintableText(entry);
  if (name.empty() || name.front() != '/') return name;
  name.erase(0, 1);
  ReplaceAll(&name, "/", ".");
  ReplaceAll(&name, "~1", "/");
  ReplaceAll(&name, "~0", "~");
  return name;
}

// Gives each name once: the name itself, or with ~2, ~3, ... behind it.
class UniqueNames {
 public:
  std::string Take(const std::string& name) {
    std::string unique = name;
    for (int n = 2; !taken_.insert(unique).second; ++n) unique = name + "~" + std::to_string(n);
    return unique;
  }

 private:
  std::unordered_set<std::string> taken_ = {kReserved, ""};
};

}  // namespace

bool IsStructure(const ShardEntryInfo& entry) {
  return entry.name == kStructure && entry.meta == MetaOfWhole("bytes", 1, {entry.bytes});
}

std::vector<ShownEntry> ShowEntries(const std::vector<ShardEntryInfo>& entries, bool with_structure) {
  std::vector<ShownEntry> shown;
  UniqueNames names;
  for (const ShardEntryInfo& entry : entries) {
    if (!with_structure && IsStructure(entry)) {
      shown.emplace_back();
      continue;
    }
    TensorType type = TypeOfEntry(entry.meta, entry.bytes);
    shown.push_back({names.Take(NameOf(entry.name)), std::move(type.dtype), std::move(type.shape)});
  }
  return shown;
}

Result<ShardExport> PlanExport(const ShardOrigin& origin, const std::vector<ShardEntryInfo>& entries,
                               std::string_view structure) {
  const std::vector<ShownEntry> shown = ShowEntries(entries, structure.empty());
  json list = json::array();
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = shown[i].name;
    list.push_back(
        {ExactText(entries[i].name), ExactText(entries[i].meta), name.empty() ? json() : json(name)});
  }
  const json about = {{"version", kExportVersion},
                      {"key", origin.key},
                      {"step", origin.step},
                      {"rank", origin.rank},
                      {"world_size", origin.world_size},
                      {"structure", structure.empty() ? json() : ExactText(structure)},
                      {"entries", std::move(list)}};

  // Tensors with large elements first: so each begins at a multiple of its element's size.
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SafeTensorsBits(shown[a].dtype) > SafeTensorsBits(shown[b].dtype);
  });
  ShardExport out;
  std::vector<SafeTensor> tensors;
  uint64_t at = 0;
  for (const size_t i : order) {
    const ShownEntry& entry = shown[i];
    if (entry.name.empty()) continue;
    tensors.push_back({entry.name, entry.dtype, entry.shape, at, at + entries[i].bytes});
    out.pieces.push_back({entries[i].offset, entries[i].bytes});
    at += entries[i].bytes;
  }
  // "pt": what libraries ask for that read PyTorch's files.
  Result<std::string> header = MakeSafeTensorsHeader(
      {{"format", "pt"}, {kExportMetadata, about.dump(-1, ' ', false, json::error_handler_t::replace)}},
      tensors);
  if (!header) return header.error();
  out.header = *std::move(header);
  out.bytes = out.header.size() + at;
  return out;
}

}  // namespace muster
