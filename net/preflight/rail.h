// A port of this node that takes part in a test of the fabric.
#pragma once

#include <cstdint>
#include <string>

namespace muster::preflight {

struct VerbsPort {
  std::string device;  // "mlx5_0"; "": there is none
  uint8_t port = 1;
  int gid_index = 0;
  uint8_t traffic_class = 0;
};

// Ports with the same place among their nodes' rails measure with each other.
struct Rail {
  std::string interface;  // "": whichever the kernel takes to the referee
  std::string address;    // "" likewise
  int64_t mtu = 0;        // bytes; 0: unknown
  VerbsPort verbs;        // without a device: TCP
};

}  // namespace muster::preflight
