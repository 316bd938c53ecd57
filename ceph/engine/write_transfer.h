// One shard on its way from staging memory to the store.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ceph/engine/transfer.h"

namespace muster {

// `shard` has all but its chunks. What Engine::WriteShard says holds.
std::shared_ptr<ShardWrite> StartWrite(TransferContext& context, std::string space, Shard shard,
                                       std::shared_ptr<const StagedView> memory, ShardBase base,
                                       OnDelay on_delay, std::function<void(Result<Shard>)> done);

}  // namespace muster
