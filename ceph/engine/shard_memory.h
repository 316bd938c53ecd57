// The memfds in which musterd gives shards to members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// A new memfd of `bytes` zero bytes, not yet sealed. kExhausted: no memory or descriptors left.
Result<UniqueFd> MakeShardMemory(uint64_t bytes);
// For who is about to write all of a piece: its memory is made real in huge pages, where the system gives them to who asks
// (packaging/systemd/muster.conf), at a tenth of what it costs page by page. Takes some 0.05 ms/MiB; what it cannot
// do, writing does.
void PrepareShardMemory(const UniqueFd& memory, uint64_t offset, size_t bytes);
// Fills `into` from `offset`. kInvalid when the memory ends before.
Status ReadShardMemory(const UniqueFd& memory, uint64_t offset, std::span<std::byte> into);
Status WriteShardMemory(const UniqueFd& memory, uint64_t offset, std::span<const std::byte> data);
// After this nobody can change it any more, who has it or gets it.
Status SealShardMemory(const UniqueFd& memory);

}  // namespace muster
