// The RDMA devices of a host, their ports and GIDs, and how far they are from its GPUs: what the kernel shows below /sys. Needs no
// library of verbs, and changes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "net/fabric/pci.h"
#include "net/roce/fabric_interfaces.h"
#include "net/roce/gids.h"
#include "net/roce/settings.h"

namespace muster::fabric {

struct Port {
  int number = 1;
  std::string link_layer;  // "Ethernet", "InfiniBand", "Unspecified"
  std::string state;       // "ACTIVE", "DOWN", ...
  std::string physical;    // "LinkUp", "Disabled", ...
  int64_t mbit_s = 0;      // 0: the kernel does not say
  std::string width;       // "4X NDR"
  int64_t lid = 0;         // InfiniBand: this port's, its subnet manager's, and the service level to that
  int64_t sm_lid = 0;
  int64_t sm_sl = 0;
  std::string interface;      // of the chosen GID, else of the first one
  int64_t interface_mtu = 0;  // bytes; 0: there is no interface
  int64_t path_mtu = 0;       // bytes that a packet of RDMA over this interface carries; 0 likewise
  bool of_fabric = false;     // a GID is in one of the fabric's networks
  std::vector<roce::Gid> gids;
  std::optional<int> gid_index;  // what a program should use; nothing where there is none, or no choice
  std::string gid_why;           // a sentence

  [[nodiscard]] bool Active() const { return state == "ACTIVE"; }
  [[nodiscard]] bool RoCe() const { return link_layer == "Ethernet"; }
};

struct Device {
  std::string name;      // "mlx5_0"
  std::string driver;    // "mlx5_core"; "": it is made of software, as rxe
  std::string firmware;  // "": none is shown
  std::string board;
  std::string guid;
  PciPlace place;
  bool virtual_function = false;
  std::string pcie;      // "32.0 GT/s x16"; "": it is no PCI device
  std::string pcie_max;  // what it could be
  std::optional<bool> relaxed_ordering;
  std::string iommu;  // "identity", "DMA", ...; "": none
  std::vector<std::string>
      acs;                 // bridges between it and a GPU that send what goes to that GPU to the CPU first
  bool acs_known = false;  // root alone sees that
  std::vector<Port> ports;
};

struct HostDevices {
  std::vector<Device> devices;  // by name, numbers as numbers
  std::vector<PciPlace> gpus;   // by their PCI address
  std::string
      gpudirect;  // how an adapter reaches a GPU's memory: "nvidia_peermem", "dma-buf"; "": not at all
  std::map<std::string, std::string> nccl_conf;  // what /etc/nccl.conf sets
  std::string memlock;                           // of this process: "unlimited", or bytes
};

// Settings say which networks are the fabric's; without any, no port is of the fabric. Blocks as long as the files of /sys do.
HostDevices LookAtDevices(const roce::Host& host, const roce::Settings& settings);

// Sets gid_index and gid_why, by roce::BestGid. Pure.
void ChooseGid(Port& port, const roce::Settings& settings);

// The largest packet of RDMA that a frame of an interface holds, in bytes: 256 to 4096, as verbs know it; 0: none does.
int64_t PathMtu(int64_t interface_mtu);

}  // namespace muster::fabric
