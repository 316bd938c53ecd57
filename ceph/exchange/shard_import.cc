#include "ceph/exchange/shard_import.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ceph/catalog/json_fields.h"
#include "ceph/exchange/exact_text.h"
#include "ceph/exchange/leaf_types.h"
#include "client/muster.h"

namespace muster {
namespace {

using nlohmann::json;

const std::string kStructureMark = "muster-tree/1\n";

struct Source {
  const SafeTensor* tensor = nullptr;  // null: the structure
};

Error WrongMetadata(const std::string& what) {
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

// The path of a leaf that is called so in a dict, or a name of its own where that can be no entry's.
std::string EntryName(const std::string& key, size_t number) {
  std::string name = "/";
  for (const char c : key) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "/~n" + std::to_string(number);
    name += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return name.size() > MUSTER_NAME_MAX ? "/~n" + std::to_string(number) : name;
}

// Of a file from elsewhere.
Result<ShardImport> PlanForeign(const SafeTensorsHeader& header) {
  json pairs = json::array();
  std::vector<ShardEntryInfo> entries;
  std::vector<Source> sources;
  for (const SafeTensor& tensor : header.tensors) {
    const auto leaf = LeafOfType({tensor.dtype, tensor.shape});
    if (!leaf) {
      return Error{Errc::kInvalid,
                   "tensor " + PrintableText(tensor.name.substr(0, 120)) + " has the dtype " + tensor.dtype +
                       " and the shape " + json(tensor.shape).dump() +
                       ", which torch or numpy do not have, or only in more than 8 dimensions"};
    }
    const std::string name = EntryName(tensor.name, entries.size());
    pairs.push_back({tensor.name, {{leaf->kind, {name, json()}}}});
    entries.push_back({name, leaf->meta, 0, tensor.end - tensor.begin});
    sources.push_back({&tensor});
  }
  std::string structure = kStructureMark + json{{"dict", std::move(pairs)}}.dump(-1, ' ', true);
  entries.push_back({kStructure, MetaOfWhole("bytes", 1, {structure.size()}), 0, structure.size()});
  sources.push_back({});
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
    ShardOrigin origin;
    if (!Take(about, "version", &version)) return WrongMetadata("it has no version");
    if (version != kExportVersion)
      return WrongMetadata("it has version " + std::to_string(version) + "; this program reads version 1");
    if (!Take(about, "key", &origin.key) || !Take(about, "step", &origin.step) ||
        !Take(about, "rank", &origin.rank) || !Take(about, "world_size", &origin.world_size) ||
        origin.rank >= origin.world_size) {
      return WrongMetadata("key, step, rank or world_size is missing or wrong");
    }
    const json* structure = json_fields::Find(about, "structure");
    if (structure == nullptr) return WrongMetadata("it does not say whether there is a structure");
    if (!structure->is_null()) {
      auto text = ReadExactText(*structure);
      if (!text) return WrongMetadata("its structure is no text");
      structure_ = *std::move(text);
    }
    const json* entries = json_fields::Find(about, "entries");
    if (entries == nullptr || !entries->is_array()) return WrongMetadata("it has no entries");
    for (const json& entry : *entries) {
      if (Status status = Add(entry); !status) return status.error();
    }
    if (used_.size() != tensors_.size())
      return WrongMetadata("the file has tensors of which it does not say what they are");
    if (!structure_.empty() && entries_.size() == tensors_.size())
      return WrongMetadata("its structure is no entry's");
    Result<ShardImport> out = Finish(header_, std::move(entries_), sources_, std::move(structure_));
    if (out) out->origin = std::move(origin);
    return out;
  }

 private:
  // [name, metadata, tensor or null]
  Status Add(const json& entry) {
    if (!entry.is_array() || entry.size() != 3) return WrongMetadata("an entry is no list of three");
    const auto name = ReadExactText(entry[0]);
    const auto meta = ReadExactText(entry[1]);
    if (!name || !meta) return WrongMetadata("an entry's name or metadata is no text");
    if (!names_.insert(*name).second) return WrongMetadata("two entries have the same name");
    if (entry[2].is_null()) {
      ShardEntryInfo info{*name, *meta, 0, structure_.size()};
      if (structure_.empty() || !IsStructure(info)) return WrongMetadata("an entry has no tensor");
      entries_.push_back(std::move(info));
      sources_.push_back({});
      return {};
    }
    const auto found = entry[2].is_string() ? tensors_.find(entry[2].get<std::string>()) : tensors_.end();
    if (found == tensors_.end()) return WrongMetadata("it names a tensor that the file does not have");
    const SafeTensor& tensor = *found->second;
    if (!used_.insert(&tensor).second) return WrongMetadata("two entries are one tensor");
    const uint64_t bytes = tensor.end - tensor.begin;
    if (TypeOfEntry(*meta, bytes) != TensorType{tensor.dtype, tensor.shape}) {
      return WrongMetadata(
          "tensor " + PrintableText(tensor.name.substr(0, 120)) +
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
  std::string structure_;  // "": there is none
  std::vector<ShardEntryInfo> entries_;
  std::vector<Source> sources_;
};

}  // namespace

Result<ShardImport> PlanImport(const SafeTensorsHeader& header) {
  const auto about = header.metadata.find(kExportMetadata);
  return about == header.metadata.end() ? PlanForeign(header) : Exported(header).Plan(about->second);
}

}  // namespace muster
