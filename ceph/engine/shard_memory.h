// The memfds that shards travel in between a member and its musterd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace muster {

// Whether `memory`, which comes from a user, is a memfd that is sealed against shrinking and has `bytes`
// bytes.
Status CheckStagedMemory(const UniqueFd& memory, uint64_t bytes);
// Fills `into` from `offset`. kInvalid when the memory ends before.
Status ReadStagedMemory(const UniqueFd& memory, uint64_t offset, std::span<std::byte> into);

// A new memfd of `bytes` zero bytes, not yet sealed. kExhausted: no memory or descriptors left.
Result<UniqueFd> MakeShardMemory(uint64_t bytes);
Status WriteShardMemory(const UniqueFd& memory, uint64_t offset, std::span<const std::byte> data);
// After this nobody can change it any more, who has it or gets it.
Status SealShardMemory(const UniqueFd& memory);

}  // namespace muster
