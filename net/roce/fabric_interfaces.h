// This host's interfaces, as the kernel and its programs show them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/run_program.h"
#include "net/roce/settings.h"

namespace muster::roce {

// One address of an interface.
struct HostAddress {
  std::string interface;
  std::string text;  // "10.1.0.5"
  int prefix = 0;    // bits of the network that the kernel reaches through the interface
};

// What is asked; tests give their own.
struct Host {
  std::string root;  // what /sys is below: "", or the copy of another host's
  std::function<Result<Ran>(std::vector<std::string> words)> run;
  std::function<std::vector<HostAddress>()> addresses;
};

// This one. A program may take 20 s.
Host ThisHost();

// A port of an RDMA device.
struct RdmaPort {
  std::string device;
  std::string port;
};

// A port of an adapter: it alone has DCB, rings and firmware.
struct PhysicalPort {
  std::string name;
  std::string driver;  // "": it has none, as a bridge without ports
  std::string pci;     // "0000:3b:00.0"; "": it is no PCI device
};

struct Interface {
  std::string name;
  std::string driver;  // its port's own; of an interface above others what that is: "bond", "vlan"
  std::vector<HostAddress> addresses;  // in the fabric's networks
  std::vector<std::string> parents;    // of a VLAN: the interfaces that carry its packets, the nearest last
  std::vector<PhysicalPort> ports;     // those below it, as of a bond; else the interface itself
  std::vector<RdmaPort> rdma;
};

// The last part of what a link of /sys points to; "" where there is none.
std::string LinkName(const std::string& path);
// "4: ACTIVE", as /sys has a port's states, is "ACTIVE".
std::string StateName(const std::string& line);

// What /etc/nccl.conf sets for every program of the host, by its keys.
std::map<std::string, std::string> ReadNcclConf(const Host& host);

// The names of the interfaces with an address in one of the fabric's networks, sorted.
std::vector<std::string> FabricNames(const Host& host, const Settings& settings);

// The interfaces with an address in one of the fabric's networks, sorted by name, with what /sys says of them.
std::vector<Interface> FabricInterfaces(const Host& host, const Settings& settings);

}  // namespace muster::roce
