#include "net/fabric/pci.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/small_files.h"

namespace muster::fabric {
namespace {

namespace fs = std::filesystem;

std::string PciDirectory(const std::string& root, const std::string& address) {
  return root + "/sys/bus/pci/devices/" + address;
}

// A device's configuration space as the kernel gives it: 64 bytes to an ordinary user, up to 4,096 to root.
class ConfigSpace {
 public:
  explicit ConfigSpace(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
    size_ = static_cast<size_t>(file.gcount());
  }
  [[nodiscard]] std::optional<uint32_t> Read(size_t at, size_t bytes) const {
    if (at + bytes > size_) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint32_t>(bytes_[at + i]) << (8 * i);
    return value;
  }
  // Where the capability begins.
  [[nodiscard]] std::optional<size_t> Capability(uint32_t id) const {
    size_t at = Read(0x34, 1).value_or(0) & 0xfcU;
    for (int hops = 0; at >= 0x40 && hops < 48; ++hops) {
      const auto header = Read(at, 2);
      if (!header) return std::nullopt;
      if ((*header & 0xffU) == id) return at;
      at = *header >> 8 & 0xfcU;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<size_t> ExtendedCapability(uint32_t id) const {
    size_t at = 0x100;
    for (int hops = 0; at >= 0x100 && hops < 96; ++hops) {
      const auto header = Read(at, 4);
      if (!header || *header == 0 || *header == 0xffffffffU) return std::nullopt;
      if ((*header & 0xffffU) == id) return at;
      at = *header >> 20 & 0xffcU;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool Whole() const { return size_ > 0x100; }

 private:
  std::array<uint8_t, 4096> bytes_{};
  size_t size_ = 0;
};

}  // namespace

PciPlace LookAtPlace(const std::string& root, const std::string& address) {
  PciPlace place;
  if (address.empty()) return place;
  place.address = address;
  const std::string directory = PciDirectory(root, address);
  std::error_code ignored;
  // The link leads through every bridge: ../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0
  bool from_root = false;
  for (const fs::path& part : fs::read_symlink(directory, ignored)) {
    from_root = from_root || part.string().starts_with("pci");
    if (from_root) place.path.push_back(part);
  }
  const std::string numa = ReadLine(directory + "/numa_node");
  if (const auto number = ParseDecimal(numa))
    place.numa = static_cast<int>(std::min<uint64_t>(*number, 4096));
  place.cpus = ReadLine(directory + "/local_cpulist");
  place.vendor = ReadLine(directory + "/vendor");
  return place;
}

size_t SharedBridges(const PciPlace& one, const PciPlace& other) {
  return static_cast<size_t>(std::ranges::mismatch(one.path, other.path).in1 - one.path.begin());
}

std::string Distance(const PciPlace& one, const PciPlace& other) {
  if (one.path.empty() || other.path.empty()) return "";
  const size_t shared = SharedBridges(one, other);
  if (shared >= 2) {
    // What is below the last bridge that both have: a port of its switch and the device, where they are on one switch.
    const size_t below = std::max(one.path.size() - shared, other.path.size() - shared);
    return below <= 2 ? "PIX" : "PXB";
  }
  if (shared == 1) return "PHB";
  return one.numa == other.numa ? "NODE" : "SYS";
}

int Rank(const std::string& distance) {
  constexpr std::array kNear{"PIX", "PXB", "PHB", "NODE", "SYS"};
  return static_cast<int>(std::ranges::find(kNear, distance) - kNear.begin());
}

std::vector<PciPlace> LookAtGpus(const std::string& root) {
  std::vector<PciPlace> gpus;
  for (const std::string& address : ListDirectory(root + "/sys/bus/pci/devices")) {
    const std::string directory = PciDirectory(root, address);
    const std::string kind = ReadLine(directory + "/class");
    const bool display =
        kind.starts_with("0x0300") || kind.starts_with("0x0302") || kind.starts_with("0x0380");
    if (!display && !kind.starts_with("0x1200")) continue;
    // A server's own display is somebody else's.
    PciPlace place = LookAtPlace(root, address);
    if (place.vendor == kNvidia || place.vendor == kAmd) gpus.push_back(std::move(place));
  }
  return gpus;
}

std::optional<bool> RelaxedOrdering(const std::string& root, const std::string& address) {
  const ConfigSpace space(PciDirectory(root, address) + "/config");
  const auto at = space.Capability(0x10);  // PCI Express
  if (!at) return std::nullopt;
  const auto control = space.Read(*at + 8, 2);
  if (!control) return std::nullopt;
  return (*control & 1U << 4) != 0;
}

std::optional<bool> Redirects(const std::string& root, const std::string& address) {
  const ConfigSpace space(PciDirectory(root, address) + "/config");
  if (!space.Whole()) return std::nullopt;
  const auto at = space.ExtendedCapability(0x0d);  // Access Control Services
  if (!at) return false;
  const auto control = space.Read(*at + 6, 2);
  if (!control) return std::nullopt;
  return (*control & 0x1cU) != 0;  // requests, completions, upstream forwarding
}

}  // namespace muster::fabric
