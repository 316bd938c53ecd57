// The bytes of a shard as libmuster lays them out in staging memory (and so in the store). libc only:
// libmuster uses it. All integers little-endian.
//
//   0   8  magic "MUSTSHRD"
//   8   4  format version, 1
//   12  4  number of entries
//   16  8  offset of the index
//   24  8  bytes of the index
//   32  32 zero
//   64  …  entries' data, each beginning at a multiple of 64
//   index: for each entry: u64 offset, u64 bytes, u32 name bytes, u32 meta bytes, name, meta, zeros up to a
//   multiple of 8
#pragma once

#include <stdint.h>

namespace muster {

inline constexpr char kShardMagic[8] = {'M', 'U', 'S', 'T', 'S', 'H', 'R', 'D'};
inline constexpr uint32_t kShardVersion = 1;
inline constexpr uint64_t kShardAlignment = 64;

struct ShardHeader {
  char magic[8];
  uint32_t version;
  uint32_t entries;
  uint64_t index_offset;
  uint64_t index_bytes;
  uint8_t zero[32];
};
static_assert(sizeof(ShardHeader) == 64);

struct ShardEntry {
  uint64_t offset;
  uint64_t bytes;
  uint32_t name_bytes;
  uint32_t meta_bytes;
};
static_assert(sizeof(ShardEntry) == 24);

}  // namespace muster
