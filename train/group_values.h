// Values of the host through a group, whatever memory it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "train/ops.h"

namespace muster::train {

// As Collectives::AllGather and Broadcast, of a few bytes of the host's memory. They go by way of the memory of `ops` where
// the group takes that.
[[nodiscard]] Status AllGather(Ops& ops, Collectives& group, std::span<std::int64_t> values);
[[nodiscard]] Status Broadcast(Ops& ops, Collectives& group, std::span<std::byte> bytes, int root);

}  // namespace muster::train
