// The names of a checkpoint's objects: "data/KEY/STEP.TERM.GENERATION/" and below it "RANK.CHUNK" and "manifest", all numbers in
// decimal. The fence in the name keeps two generations from ever writing the same object. Within one a shard may be written
// twice: a member whose musterd was restarted hands it over again, and what was written first may have been committed
// meanwhile. So after a restart it is "RANK-WRITE.CHUNK", WRITE at random each time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ceph/catalog/fence.h"

namespace muster {

// "data/KEY/"
std::string DataPrefix(std::string_view key);
// "data/KEY/STEP.TERM.GENERATION/"
std::string CheckpointPrefix(std::string_view key, uint64_t step, const Fence& fence);
// "data/KEY/STEP.TERM.GENERATION/RANK", with `write` "RANK-WRITE", in 8 hexadecimal digits; a chunk's name is this + "." + its
// index.
std::string ShardPrefix(std::string_view key, uint64_t step, const Fence& fence, uint32_t rank,
                        std::optional<uint32_t> write = std::nullopt);
std::string ChunkName(std::string_view shard_prefix, uint64_t chunk);
std::string ManifestName(std::string_view key, uint64_t step, const Fence& fence);

struct CheckpointDirectory {
  uint64_t step = 0;
  Fence fence;
};
// Which checkpoint an object below DataPrefix(key) belongs to; nothing for a name of another form.
std::optional<CheckpointDirectory> ParseObjectName(std::string_view key, std::string_view name);
// The same of a ShardPrefix of this rank, with or without WRITE; nothing for anything else.
std::optional<CheckpointDirectory> ParseShardPrefix(std::string_view key, uint32_t rank,
                                                    std::string_view prefix);
// Whether a ShardPrefix ends with a WRITE.
bool HasWrite(std::string_view prefix);
// The first name of an object below DataPrefix(key) in a text, as errors of the engine and the store have it: up to the next
// space. Empty when there is none.
std::string_view ObjectNamedIn(std::string_view text, std::string_view key);

}  // namespace muster
