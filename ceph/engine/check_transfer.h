// Whether staging memory holds a shard.
#pragma once

#include <functional>
#include <memory>

#include "ceph/engine/transfer.h"

namespace muster {

// What Engine::CheckStaged says holds, of memory that is sealed already.
std::shared_ptr<Transfer> MakeCheckTransfer(TransferContext& context, const Shard& shard,
                                            std::shared_ptr<const StagedView> memory,
                                            std::function<void(Status)> done);

}  // namespace muster
