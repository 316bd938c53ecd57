// Where PCI devices are, and how far from each other.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace muster::fabric {

inline constexpr char kNvidia[] = "0x10de";
inline constexpr char kAmd[] = "0x1002";

struct PciPlace {
  std::string address;  // "0000:3b:00.0"; "": no PCI device
  std::vector<std::string>
      path;            // from the root complex to the device itself: "pci0000:3a", "0000:3a:01.0", ...
  int numa = -1;       // -1: the kernel does not say
  std::string cpus;    // next to it, as Linux lists them: "0-31"
  std::string vendor;  // "0x10de"
};

PciPlace LookAtPlace(const std::string& root, const std::string& address);

// How many parts of their paths two devices share: the host bridge, and bridges below it.
size_t SharedBridges(const PciPlace& one, const PciPlace& other);

// How far two devices are apart, in the words of `nvidia-smi topo`: PIX, the same switch; PXB, several switches; PHB, through
// the CPU; NODE, between host bridges of a NUMA node; SYS, between NUMA nodes. "": one of them is no PCI device.
std::string Distance(const PciPlace& one, const PciPlace& other);
// The smaller, the nearer.
int Rank(const std::string& distance);

// GPUs and other accelerators, by address.
std::vector<PciPlace> LookAtGpus(const std::string& root);

// Of a device's configuration space; nothing where it cannot be read, or the device has no such thing.
std::optional<bool> RelaxedOrdering(const std::string& root, const std::string& address);
// Whether a bridge redirects what one device below it sends to another one to the root complex (ACS).
std::optional<bool> Redirects(const std::string& root, const std::string& address);

}  // namespace muster::fabric
