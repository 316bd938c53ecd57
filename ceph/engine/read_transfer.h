// One shard, or a part of it, on its way from the store into memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "ceph/engine/engine.h"
#include "ceph/engine/transfer.h"

namespace muster {

// Reads bytes `begin` to `end` - 1 (`begin` <= `end` <= shard.bytes) and verifies every chunk that has some of them. They are
// kept where `memory` is a memfd of so many bytes, which is then sealed; it may be invalid. `have`, if not empty, has a flag
// for each of these chunks: one that is in the memory already is not read. `reader`: see Engine::ReadShard.
std::shared_ptr<Transfer> MakeReadTransfer(TransferContext& context, std::string space, const Shard& shard,
                                           uint64_t begin, uint64_t end, UniqueFd memory,
                                           std::vector<bool> have, std::function<void(Result<UniqueFd>)> done,
                                           const Reader& reader = std::nullopt);

}  // namespace muster
