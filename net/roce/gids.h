// GIDs of a port of an RDMA device, and which of them a program should use. Pure.
#pragma once

#include <string>
#include <vector>

#include "net/roce/settings.h"

namespace muster::roce {

// An entry of a port's table of GIDs: an address by which RDMA's packets reach the port. Empty entries of the table are left out.
struct Gid {
  int index = 0;
  std::string address;    // "10.1.0.5" for what stands for IPv4, else IPv6
  std::string type;       // "RoCE v2", "IB/RoCE v1"; "" where the kernel does not say
  std::string interface;  // "": InfiniBand

  [[nodiscard]] bool LinkLocal() const { return address.starts_with("fe80:"); }
};

// A GID as the kernel's table has it, written as people write addresses ("10.1.0.5", "fe80::1"); "": the entry is empty.
std::string GidAddress(const std::string& line);

// Whether the address is in one of the fabric's networks.
bool OfFabric(const std::vector<Network>& networks, const Gid& gid);

// Of the GIDs of RoCE v2 the first in the fabric's networks, else the first of IPv4, else the first that passes a router, else the first;
// nullptr: no GID is of RoCE v2. `interface`: only GIDs of this interface are looked at; "": those of all interfaces that share the port.
const Gid* BestGid(const std::vector<Gid>& gids, const std::vector<Network>& networks,
                   const std::string& interface = "");

}  // namespace muster::roce
