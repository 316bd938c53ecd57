// What is in a shard (ceph/engine/shard_format.h): its index read, and a new shard laid out. The bytes were written by some
// program: everything in them is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster {

struct ShardEntryInfo {
  std::string name;
  std::string meta;
  uint64_t offset = 0;  // in the shard
  uint64_t bytes = 0;
};

struct ShardIndexPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t entries = 0;
};

inline constexpr size_t kShardHeaderBytes = 64;

// Where the index of a shard of `shard_bytes` bytes is, by its first kShardHeaderBytes. kInvalid: it is not a shard of a
// version that is known.
Result<ShardIndexPlace> ReadShardHeader(std::span<const std::byte> header, uint64_t shard_bytes);
// The entries, by the bytes of the index. kInvalid names what is wrong.
Result<std::vector<ShardEntryInfo>> ReadShardIndex(const ShardIndexPlace& place,
                                                   std::span<const std::byte> index);

// A new shard: `header` at 0, each entry's data at its offset, `index` at index_offset, zeros between.
struct ShardLayout {
  std::string header;
  std::string index;
  uint64_t index_offset = 0;
  uint64_t bytes = 0;
};
// Gives the entries their offsets. kInvalid: a name or a metadata that no shard can have.
Result<ShardLayout> LayOutShard(std::vector<ShardEntryInfo>* entries);

}  // namespace muster
