// What a link carries besides the test: other jobs, storage.
#pragma once

#include <chrono>

#include "net/preflight/rail.h"

namespace muster::preflight {

enum class Flow { kOut, kIn };

// Mbit/s that this node's link carries in one direction while nothing is measured over it, by the counters of the interface and of the
// RDMA port. Takes `time`. 0 where there are no counters, or when data has come on `socket` meanwhile, which is the measurement's own;
// -1: no socket.
double OtherTraffic(const Rail& rail, Flow flow, int socket, std::chrono::milliseconds time);

}  // namespace muster::preflight
