// Ports that no other program on this node gets: bound, not listening, with SO_REUSEADDR, so that the member
// they are for can bind and listen (PyTorch's store, gRPC and most servers set SO_REUSEADDR), and the kernel
// gives them to nobody else.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// Holds `count` ports in a row until it is destroyed.
class PortLease {
 public:
  // Looks for free ones in [first, last], starting at a random place.
  static Result<PortLease> Take(uint16_t first, uint16_t last, uint16_t count);
  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  uint16_t port_ = 0;
  std::vector<UniqueFd> sockets_;
};

}  // namespace muster
