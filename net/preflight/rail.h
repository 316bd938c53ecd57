// A port of this node that takes part in a test of the fabric.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// Ports of a network measure with each other; of several in one network those with the same place.
struct Rail {
  std::string interface;              // "": whichever the kernel takes to the referee
  std::string address;                // "" likewise
  int64_t mtu = 0;                    // bytes; 0: unknown
  int64_t rate_mbit_s = 0;            // of the link; 0: unknown
  std::string network;                // of the settings, "10.1.0.0/16"
  std::vector<std::string> carriers;  // the adapters' ports below it: "roce0", "mlx5_0:1"
  VerbsPort verbs;
  NoVerbs no_verbs;

  // Else: TCP.
  [[nodiscard]] bool HasVerbs() const { return !verbs.device.empty() && no_verbs.why.empty(); }
};

}  // namespace muster::preflight
