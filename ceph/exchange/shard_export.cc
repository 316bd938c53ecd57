#include "ceph/exchange/shard_export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "ceph/exchange/exact_text.h"
#include "ceph/exchange/leaf_tree.h"
#include "ceph/exchange/leaf_types.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr char kReserved[] = "__metadata__";

struct Form {
  bool tree = false;
  std::vector<ShownEntry> entries;  // as the shard's
};

// As a tree, when the structure reads and each of its leaves is an entry.
bool ShowAsTree(const std::vector<ShardEntryInfo>& entries, std::string_view structure, Form* form) {
  const Result<std::vector<TreeLeaf>> leaves = TreeLeaves(structure);
  if (!leaves || !json::accept(structure)) return false;
  std::map<std::string_view, const TreeLeaf*> by_entry;
  for (const TreeLeaf& leaf : *leaves) by_entry[leaf.entry] = &leaf;
  if (by_entry.size() != leaves->size() || entries.size() != leaves->size() + 1) return false;
  UniqueNames names;
  names.Take(kReserved);
  for (const ShardEntryInfo& entry : entries) {
    if (entry.name == kTreeStructure) {
      form->entries.emplace_back();
      continue;
    }
    const auto leaf = by_entry.find(entry.name);
    if (leaf == by_entry.end()) return false;
    TensorType type = TypeOfLeaf(leaf->second->kind, entry.meta, entry.bytes);
    form->entries.push_back({names.Take(leaf->second->path), std::move(type.dtype), std::move(type.shape)});
  }
  form->tree = true;
  return true;
}

Form FormOf(const std::vector<ShardEntryInfo>& entries, std::string_view structure) {
  Form form;
  if (!structure.empty() && ShowAsTree(entries, structure, &form)) return form;
  form = {};
  UniqueNames names;
  names.Take(kReserved);
  for (const ShardEntryInfo& entry : entries) {
    TensorType type = TypeOfLeaf("slice", entry.meta, entry.bytes);
    form.entries.push_back(
        {names.Take(PrintableText(entry.name)), std::move(type.dtype), std::move(type.shape)});
  }
  return form;
}

}  // namespace

std::vector<ShownEntry> ShowEntries(const std::vector<ShardEntryInfo>& entries, std::string_view structure) {
  return FormOf(entries, structure).entries;
}

Result<ShardExport> PlanExport(const ShardOrigin& origin, const std::vector<ShardEntryInfo>& entries,
                               std::string_view structure) {
  const Form form = FormOf(entries, structure);
  json list = json::array();
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = form.entries[i].name;
    list.push_back(
        {ExactText(entries[i].name), ExactText(entries[i].meta), name.empty() ? json() : json(name)});
  }
  const json about = {{"version", kExportVersion},
                      {"kind", form.tree ? "tree" : "entries"},
                      {"key", origin.key},
                      {"step", origin.step},
                      {"rank", origin.rank},
                      {"world_size", origin.world_size},
                      {"structure", form.tree ? json(structure) : json()},
                      {"entries", std::move(list)}};

  // Tensors with large elements first: so each begins at a multiple of its element's size.
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SafeTensorsElement(form.entries[a].dtype) > SafeTensorsElement(form.entries[b].dtype);
  });
  ShardExport out;
  std::vector<SafeTensor> tensors;
  uint64_t at = 0;
  for (const size_t i : order) {
    const ShownEntry& entry = form.entries[i];
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
