// What the Python package saves, a muster-tree (docs/formats.md, Shard): which entry of the shard is which leaf of the
// program's state.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "ceph/exchange/shard_index.h"

namespace muster {

inline constexpr char kTreeStructure[] = "structure";
inline constexpr char kTreeMeta[] = R"({"format": "muster-tree", "version": 1})";

// Whether an entry is the structure of a muster-tree of a version that is known.
bool IsTreeStructure(const ShardEntryInfo& entry);

struct TreeLeaf {
  std::string entry;  // its name in the shard: a number
  std::string path;   // "model.layers.0.weight"; each once
  std::string kind;   // tensor, array, scalar, bytes
};

// The leaves in their order. A path is the keys and places on the way, with dots between. kInvalid: it is no structure.
Result<std::vector<TreeLeaf>> TreeLeaves(std::string_view structure);

// Gives each name once: the name itself, or with ~2, ~3, ... behind it.
class UniqueNames {
 public:
  std::string Take(const std::string& name);

 private:
  std::unordered_set<std::string> taken_;
};

}  // namespace muster
