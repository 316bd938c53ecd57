// Tells a host whose musterd is gone from one that is silent: the first refuses a connection to musterd's port.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "daemon/beat/address.h"

namespace muster {

enum class Port {
  kUnknown,  // the address is not valid, or this host could not try
  kSilent,   // no answer in time, or no way there: the host is dead or cut off
  kRefuses,  // the host lives, and nobody listens
  kAccepts,
};

// What becomes of a connection to each of these TCP ports within `timeout`, in their order. Blocks for `timeout` at most
// for each 256 addresses.
std::vector<Port> ProbePorts(const std::vector<BeatAddress>& addresses, std::chrono::milliseconds timeout);

}  // namespace muster
