// A shard as a safetensors file. The file has everything that the shard has: what is no tensor is in its metadata, under
// the key "muster" (docs/formats.md, Exported checkpoints), so that import gives back the very same state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ceph/exchange/safetensors.h"
#include "ceph/exchange/shard_index.h"

namespace muster {

inline constexpr char kExportMetadata[] = "muster";
inline constexpr int kExportVersion = 1;

// Which shard it is.
struct ShardOrigin {
  std::string key;
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

struct ShardExport {
  struct Piece {
    uint64_t offset = 0;  // in the shard
    uint64_t bytes = 0;
  };
  std::string header;         // of the file: length and header
  std::vector<Piece> pieces;  // what follows it
  uint64_t bytes = 0;         // of the file
};

// Whether an entry says what the state is that a shard has: it is no tensor, but in the file's metadata.
inline constexpr char kStructure[] = "structure";
bool IsStructure(const ShardEntryInfo& entry);

// `structure` is the data of the entry that IsStructure, else "": it is one of the tensors then.
Result<ShardExport> PlanExport(const ShardOrigin& origin, const std::vector<ShardEntryInfo>& entries,
                               std::string_view structure);

// The tensors' names and types that PlanExport would give, by the entries' places: what people want to see of a shard. "" as
// a name: the entry is no tensor.
struct ShownEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
};
std::vector<ShownEntry> ShowEntries(const std::vector<ShardEntryInfo>& entries, bool with_structure = false);

}  // namespace muster
