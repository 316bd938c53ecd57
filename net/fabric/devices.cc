#include "net/fabric/devices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/small_files.h"

namespace muster::fabric {
namespace {

namespace fs = std::filesystem;

// "mlx5_2" before "mlx5_10".
bool ByNumbers(const std::string& a, const std::string& b) {
  return ::strverscmp(a.c_str(), b.c_str()) < 0;
}

int64_t Hexadecimal(const std::string& text) {
  return std::strtoll(text.c_str(), nullptr, 16);
}

// "400 Gb/sec (4X NDR)"
void ReadRate(const std::string& line, Port& port) {
  const double gbit_s = std::strtod(line.c_str(), nullptr);
  if (line.find("Gb/sec") != std::string::npos && gbit_s > 0 && gbit_s < 1e6)
    port.mbit_s = std::llround(gbit_s * 1000);
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open != std::string::npos && close != std::string::npos && close > open)
    port.width = line.substr(open + 1, close - open - 1);
}

std::vector<roce::Gid> ReadGids(const std::string& directory) {
  std::vector<roce::Gid> gids;
  for (const std::string& index : ListDirectory(directory + "/gids")) {
    const auto number = ParseDecimal(index);
    if (!number || *number > 65'535) continue;
    const std::string address = roce::GidAddress(ReadLine(directory + "/gids/" + index));
    if (address.empty()) continue;
    // The kernel answers "Invalid argument" for the type of an entry that another namespace has.
    gids.push_back({static_cast<int>(*number), address, ReadLine(directory + "/gid_attrs/types/" + index),
                    ReadLine(directory + "/gid_attrs/ndevs/" + index)});
  }
  std::ranges::sort(gids, {}, &roce::Gid::index);
  return gids;
}

Port LookAtPort(const roce::Host& host, const roce::Settings& settings, const std::string& directory,
                const std::string& number) {
  Port port;
  port.number = static_cast<int>(ParseDecimal(number).value_or(0));
  port.link_layer = ReadLine(directory + "/link_layer");
  port.state = roce::StateName(ReadLine(directory + "/state"));
  port.physical = roce::StateName(ReadLine(directory + "/phys_state"));
  ReadRate(ReadLine(directory + "/rate"), port);
  if (port.link_layer == "InfiniBand") {
    port.lid = Hexadecimal(ReadLine(directory + "/lid"));
    port.sm_lid = Hexadecimal(ReadLine(directory + "/sm_lid"));
    port.sm_sl = static_cast<int64_t>(ReadNumber(directory + "/sm_sl").value_or(0));
  }
  port.gids = ReadGids(directory);
  port.of_fabric = std::ranges::any_of(
      port.gids, [&](const roce::Gid& gid) { return roce::OfFabric(settings.networks, gid); });
  ChooseGid(port, settings);
  for (const roce::Gid& gid : port.gids) {
    if (port.interface.empty() || gid.index == port.gid_index) port.interface = gid.interface;
  }
  // A port that is down has no address of IP, but the entry of its interface may be there.
  if (port.interface.empty()) port.interface = ReadLine(directory + "/gid_attrs/ndevs/0");
  if (!port.interface.empty()) {
    port.interface_mtu =
        static_cast<int64_t>(ReadNumber(host.root + "/sys/class/net/" + port.interface + "/mtu").value_or(0));
    port.path_mtu = PathMtu(port.interface_mtu);
  }
  return port;
}

std::string Lanes(const std::string& device, const char* prefix) {
  const std::string speed = ReadLine(device + "/" + prefix + "_link_speed");
  const std::string width = ReadLine(device + "/" + prefix + "_link_width");
  if (speed.empty() || width.empty() || width == "0") return "";
  const size_t unit = speed.find(" PCIe");
  return speed.substr(0, unit) + " x" + width;
}

// Bridges on the device's way to the place where what it sends to some GPU turns around, below the CPU. Where no GPU is below a bridge of
// the device's, all of it passes the CPU anyway.
std::vector<std::string> BridgesToGpus(const PciPlace& place, const std::vector<PciPlace>& gpus) {
  size_t first = place.path.size();
  for (const PciPlace& gpu : gpus) {
    const size_t shared = SharedBridges(place, gpu);
    if (shared >= 2) first = std::min(first, shared);
  }
  std::vector<std::string> bridges;
  for (size_t i = first; i + 1 < place.path.size(); ++i) bridges.push_back(place.path[i]);
  return bridges;
}

Device LookAtDevice(const roce::Host& host, const roce::Settings& settings, const std::vector<PciPlace>& gpus,
                    const std::string& name) {
  const std::string directory = host.root + "/sys/class/infiniband/" + name;
  const std::string below = directory + "/device";
  Device device;
  device.name = name;
  device.driver = roce::LinkName(below + "/driver");
  device.firmware = ReadLine(directory + "/fw_ver");
  device.board = ReadLine(directory + "/board_id");
  device.guid = ReadLine(directory + "/node_guid");
  if (roce::LinkName(below + "/subsystem") == "pci") {
    const std::string address = roce::LinkName(below);
    device.place = LookAtPlace(host.root, address);
    device.virtual_function = !roce::LinkName(below + "/physfn").empty();
    device.pcie = Lanes(below, "current");
    device.pcie_max = Lanes(below, "max");
    device.relaxed_ordering = RelaxedOrdering(host.root, address);
    const std::string group = roce::LinkName(below + "/iommu_group");
    if (!group.empty()) device.iommu = ReadLine(host.root + "/sys/kernel/iommu_groups/" + group + "/type");
    device.acs_known = true;
    for (const std::string& bridge : BridgesToGpus(device.place, gpus)) {
      const auto redirects = Redirects(host.root, bridge);
      device.acs_known = device.acs_known && redirects.has_value();
      if (redirects.value_or(false)) device.acs.push_back(bridge);
    }
  }
  for (const std::string& port : ListDirectory(directory + "/ports"))
    device.ports.push_back(LookAtPort(host, settings, directory + "/ports/" + port, port));
  std::ranges::sort(device.ports, {}, &Port::number);
  return device;
}

std::string GpuDirect(const std::string& root, const std::vector<PciPlace>& gpus) {
  const auto loaded = [&](const char* module) {
    std::error_code ignored;
    return fs::exists(root + "/sys/module/" + module, ignored);
  };
  if (std::ranges::find(gpus, kNvidia, &PciPlace::vendor) == gpus.end())
    return loaded("amdgpu") ? "dma-buf" : "";
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    if (loaded(module)) return "nvidia_peermem";
  }
  // NVIDIA's open modules give a GPU's memory as a dma-buf, which drivers of RDMA take from Linux 5.12 on.
  const auto version = ReadSmallFile(root + "/proc/driver/nvidia/version");
  return version && version->find("Open Kernel Module") != std::string::npos ? "dma-buf" : "";
}

std::string Memlock(const std::string& root) {
  const auto limits = ReadSmallFile(root + "/proc/self/limits");
  for (const std::string& line : Words(limits.value_or(""), "\n")) {
    if (!line.starts_with("Max locked memory")) continue;
    const auto words = Words(line);
    return words.size() > 3 ? words[3] : "";
  }
  return "";
}

}  // namespace

void ChooseGid(Port& port, const roce::Settings& settings) {
  port.gid_index.reset();
  if (!port.RoCe()) {
    port.gid_why =
        port.link_layer == "InfiniBand" ? "InfiniBand routes by its LID" : "this link has no choice of GIDs";
    return;
  }
  const roce::Gid* best = roce::BestGid(port.gids, settings.networks);
  if (best == nullptr) {
    port.gid_why = port.gids.empty() ? "its interface has no address" : "no GID is one of RoCE v2";
    return;
  }
  port.gid_index = best->index;
  if (roce::OfFabric(settings.networks, *best)) {
    port.gid_why = "RoCE v2, and its address is in a network of the fabric";
  } else if (best->LinkLocal()) {
    port.gid_why =
        "RoCE v2, but its address is link-local: it passes no router, and the interface has no other";
  } else {
    port.gid_why = settings.networks.empty() ? "RoCE v2; the settings name no networks"
                                             : "RoCE v2, but its address is in no network of the fabric";
  }
}

int64_t PathMtu(int64_t interface_mtu) {
  // IPv6's header, UDP's, RDMA's with its longest extensions, and the checksum: as the kernel counts them.
  constexpr int64_t kHeaders = 40 + 8 + 12 + 4 + 28 + 4;
  for (const int64_t size : {4096, 2048, 1024, 512, 256}) {
    if (interface_mtu - kHeaders >= size) return size;
  }
  return 0;
}

HostDevices LookAtDevices(const roce::Host& host, const roce::Settings& settings) {
  HostDevices found;
  auto names = ListDirectory(host.root + "/sys/class/infiniband");
  std::ranges::sort(names, ByNumbers);
  found.gpus = LookAtGpus(host.root);
  for (const std::string& name : names)
    found.devices.push_back(LookAtDevice(host, settings, found.gpus, name));
  if (!found.gpus.empty()) found.gpudirect = GpuDirect(host.root, found.gpus);
  found.nccl_conf = roce::ReadNcclConf(host);
  found.memlock = Memlock(host.root);
  return found;
}

}  // namespace muster::fabric
