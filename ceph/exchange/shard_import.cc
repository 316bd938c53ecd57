#include "ceph/exchange/shard_import.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ceph/catalog/json_fields.h"
#include "ceph/exchange/exact_text.h"
#include "ceph/exchange/leaf_tree.h"
#include "ceph/exchange/leaf_types.h"

namespace muster {
namespace {

using nlohmann::json;

struct Source {
  const SafeTensor* tensor = nullptr;  // null: the structure
};

Error Wrong(const std::string& what) {
  return {Errc::kInvalid, "its Muster metadata is not what `muster checkpoint export` writes: " + what};
}

Result<ShardImport> Finish(const SafeTensorsHeader& header, std::vector<ShardEntryInfo> entries,
                           const std::vector<Source>& sources, std::string structure) {
  ShardImport out;
  Result<ShardLayout> layout = LayOutShard(&entries);
  if (!layout) return layout.error();
  out.layout = *std::move(layout);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (sources[i].tensor == nullptr) {
      out.structure_offset = entries[i].offset;
    } else {
      out.pieces.push_back(
          {entries[i].offset, header.data_offset + sources[i].tensor->begin, entries[i].bytes});
    }
  }
  out.structure = std::move(structure);
  return out;
}

// Of a file from elsewhere.
Result<ShardImport> PlanForeign(const SafeTensorsHeader& header) {
  json pairs = json::array();
  std::vector<ShardEntryInfo> entries(1);
  std::vector<Source> sources(1);
  for (const SafeTensor& tensor : header.tensors) {
    const auto leaf = LeafOfType({tensor.dtype, tensor.shape});
    if (!leaf) {
      return Error{Errc::kInvalid, "neither torch nor numpy has the dtype " + tensor.dtype};
    }
    const size_t number = entries.size() - 1;
    pairs.push_back({tensor.name, {{leaf->kind, number}}});
    entries.push_back({std::to_string(number), leaf->meta, 0, tensor.end - tensor.begin});
    sources.push_back({&tensor});
  }
  std::string structure = json{{"dict", std::move(pairs)}}.dump(-1, ' ', true);
  entries.front() = {kTreeStructure, kTreeMeta, 0, structure.size()};
  return Finish(header, std::move(entries), sources, std::move(structure));
}

class Exported {
 public:
  explicit Exported(const SafeTensorsHeader& header) : header_(header) {
    for (const SafeTensor& tensor : header.tensors) tensors_[tensor.name] = &tensor;
  }

  Result<ShardImport> Plan(const std::string& text) {
    using json_fields::Take;
    const json about = json::parse(text, nullptr, false);
    uint64_t version = 0;
    std::string kind;
    ShardOrigin origin;
    if (!Take(about, "version", &version)) return Wrong("it has no version");
    if (version != kExportVersion)
      return Wrong("it has version " + std::to_string(version) + "; this program reads version 1");
    if (!Take(about, "kind", &kind) || !Take(about, "key", &origin.key) ||
        !Take(about, "step", &origin.step) || !Take(about, "rank", &origin.rank) ||
        !Take(about, "world_size", &origin.world_size) || origin.rank >= origin.world_size) {
      return Wrong("kind, key, step, rank or world_size is missing or wrong");
    }
    if (kind != "tree" && kind != "entries") return Wrong("it has an unknown kind");
    if (kind == "tree") {
      if (Status status = ReadStructure(about); !status) return status.error();
    }
    const json* entries = json_fields::Find(about, "entries");
    if (entries == nullptr || !entries->is_array()) return Wrong("it has no entries");
    for (const json& entry : *entries) {
      if (Status status = Add(entry); !status) return status.error();
    }
    if (used_.size() != tensors_.size())
      return Wrong("the file has tensors of which it does not say what they are");
    if (!structure_.empty() && entries_.size() != leaves_.size() + 1)
      return Wrong("not every leaf of the structure is there");
    Result<ShardImport> out = Finish(header_, std::move(entries_), sources_, std::move(structure_));
    if (out) out->origin = std::move(origin);
    return out;
  }

 private:
  Status ReadStructure(const json& about) {
    if (!json_fields::Take(about, "structure", &structure_)) return Wrong("it has no structure");
    const auto leaves = TreeLeaves(structure_);
    if (!leaves) return Wrong(leaves.error().message);
    for (const TreeLeaf& leaf : *leaves) {
      if (!leaves_.emplace(leaf.entry, leaf.kind).second) return Wrong("two leaves are one entry");
    }
    return {};
  }

  // [name, metadata, tensor or null]
  Status Add(const json& entry) {
    if (!entry.is_array() || entry.size() != 3) return Wrong("an entry is no list of three");
    const auto name = ReadExactText(entry[0]);
    const auto meta = ReadExactText(entry[1]);
    if (!name || !meta) return Wrong("an entry's name or metadata is no text");
    if (!names_.insert(*name).second) return Wrong("two entries have the same name");
    if (entry[2].is_null()) {
      ShardEntryInfo info{*name, *meta, 0, structure_.size()};
      if (structure_.empty() || !IsTreeStructure(info)) return Wrong("an entry has no tensor");
      entries_.push_back(std::move(info));
      sources_.push_back({});
      return {};
    }
    const auto found = entry[2].is_string() ? tensors_.find(entry[2].get<std::string>()) : tensors_.end();
    if (found == tensors_.end()) return Wrong("it names a tensor that the file does not have");
    const SafeTensor& tensor = *found->second;
    if (!used_.insert(&tensor).second) return Wrong("two entries are one tensor");
    const uint64_t bytes = tensor.end - tensor.begin;
    const auto leaf = leaves_.find(*name);
    if (!structure_.empty() && leaf == leaves_.end()) return Wrong("an entry is no leaf of the structure");
    const TensorType expected = TypeOfLeaf(structure_.empty() ? "slice" : leaf->second, *meta, bytes);
    if (expected != TensorType{tensor.dtype, tensor.shape}) {
      return Wrong("tensor " + PrintableText(tensor.name.substr(0, 120)) +
                   " has another dtype or shape than it says (was it changed? without the key 'muster' in "
                   "__metadata__ the file is imported as a dict of its tensors)");
    }
    entries_.push_back({*name, *meta, 0, bytes});
    sources_.push_back({&tensor});
    return {};
  }

  const SafeTensorsHeader& header_;
  std::map<std::string, const SafeTensor*> tensors_;
  std::set<const SafeTensor*> used_;
  std::set<std::string> names_;
  std::string structure_;                      // "": plain entries
  std::map<std::string, std::string> leaves_;  // kind by entry
  std::vector<ShardEntryInfo> entries_;
  std::vector<Source> sources_;
};

}  // namespace

Result<ShardImport> PlanImport(const SafeTensorsHeader& header) {
  const auto about = header.metadata.find(kExportMetadata);
  return about == header.metadata.end() ? PlanForeign(header) : Exported(header).Plan(about->second);
}

}  // namespace muster
