// What a checkpoint consists of. Written once, as JSON; docs/formats.md has it to the byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ceph/catalog/fence.h"
#include "daemon/base/result.h"

namespace muster {

using Digest = std::array<uint8_t, 16>;  // XXH3-128 of the bytes, canonical (big-endian) form
std::string ToHex(const Digest& digest);

// One member's part: `bytes` bytes, cut into chunks of `chunk_bytes` (the last one may be shorter); chunk i
// is the object `prefix` + "." + i in decimal.
struct Shard {
  uint32_t rank = 0;
  uint64_t bytes = 0;
  uint64_t chunk_bytes = 0;
  std::string prefix;
  std::vector<Digest> chunks;
};

struct Manifest {
  std::string key;  // the gang's checkpoints
  uint64_t step = 0;
  Fence fence;  // who wrote it
  uint32_t world_size = 0;
  int64_t created_ns = 0;     // CLOCK_REALTIME
  std::vector<Shard> shards;  // by rank, one for each of world_size

  [[nodiscard]] uint64_t TotalBytes() const;
  [[nodiscard]] std::string Encode() const;
  // kCorrupt with the reason for anything that is not a complete, consistent manifest.
  static Result<Manifest> Decode(std::string_view text);
};

}  // namespace muster
