// What a checkpoint consists of. Written once, as JSON; docs/formats.md has it to the byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/fence.h"

namespace muster {

using Digest = std::array<uint8_t, 16>;  // XXH3-128 of the bytes, canonical (big-endian) form
std::string ToHex(const Digest& digest);

// Chunks `first` to `first` + `count` - 1 of a shard, whose objects an older checkpoint has written.
struct ChunkRun {
  uint64_t first = 0;
  uint64_t count = 0;
  std::string prefix;
  bool operator==(const ChunkRun&) const = default;
};

// How the object of a chunk has its bytes: width 0, as they are; else shuffled by elements of `width` bytes and compressed, so
// that the object has `bytes`, fewer than the chunk. docs/formats.md.
struct ChunkEncoding {
  uint32_t width = 0;
  uint32_t bytes = 0;
  bool operator==(const ChunkEncoding&) const = default;
};
[[nodiscard]] constexpr bool IsEncodingWidth(uint64_t width) {
  return width == 1 || width == 2 || width == 4 || width == 8;
}

// Chunks from `first` on, one for each of `bytes`, that are encoded by one width.
struct EncodedRun {
  uint64_t first = 0;
  uint32_t width = 0;
  std::vector<uint32_t> bytes;
};

// One member's part: `bytes` bytes, cut into chunks of `chunk_bytes` (the last one may be shorter); chunk i is the object
// PREFIX.i (i in decimal), where PREFIX is `prefix` unless a run of `elsewhere` has the chunk.
struct Shard {
  uint32_t rank = 0;
  uint64_t bytes = 0;
  uint64_t chunk_bytes = 0;
  std::string prefix;
  std::vector<Digest> chunks;
  std::vector<ChunkRun> elsewhere;       // ascending, none empty, none overlapping
  std::vector<ChunkEncoding> encodings;  // one for each chunk, or none when all are stored as they are

  // The last chunk may be shorter than the others.
  [[nodiscard]] uint64_t BytesOf(uint64_t chunk) const;
  [[nodiscard]] ChunkEncoding EncodingOf(uint64_t chunk) const;
  // Of its object.
  [[nodiscard]] uint64_t StoredBytesOf(uint64_t chunk) const;
  [[nodiscard]] const std::string& PrefixOf(uint64_t chunk) const;
  [[nodiscard]] std::string ObjectOf(uint64_t chunk) const;
  // For chunks in ascending order: an object of `other` is the next one.
  void AddElsewhere(uint64_t chunk, const std::string& other);
  // The encodings as runs, ascending, and back. False, and nothing is added: a run that has chunks which are not the shard's
  // or have been added, an unknown width, or no gain.
  [[nodiscard]] std::vector<EncodedRun> EncodedRuns() const;
  [[nodiscard]] bool AddEncoded(const EncodedRun& run);
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
  // kCorrupt with the reason for anything that is not a complete, consistent manifest; kInvalid for one of a newer version.
  static Result<Manifest> Decode(std::string_view text);
};

}  // namespace muster
