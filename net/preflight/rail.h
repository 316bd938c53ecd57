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

// Why a port cannot measure with RDMA, and the command or the setting that mends it.
struct NoVerbs {
  std::string why;  // "": it can
  std::string fix;
};

// Ports with the same place among their nodes' rails measure with each other.
struct Rail {
  std::string interface;  // "": whichever the kernel takes to the referee
  std::string address;    // "" likewise
  int64_t mtu = 0;        // bytes; 0: unknown
  VerbsPort verbs;
  NoVerbs no_verbs;

  // Else: TCP.
  [[nodiscard]] bool HasVerbs() const { return !verbs.device.empty() && no_verbs.why.empty(); }
};

}  // namespace muster::preflight
