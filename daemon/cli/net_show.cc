#include "daemon/cli/net_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "daemon/cli/table.h"
#include "net/fabric/devices.h"
#include "net/fabric/nccl_environment.h"

namespace muster::cli {
namespace {

using fabric::Device;
using fabric::HostDevices;
using fabric::PciPlace;
using fabric::Port;
using nlohmann::json;
using roce::Gid;

constexpr const char* kNcclConf = "/etc/nccl.conf";

void Put(json& entry, const char* key, const std::string& value) {
  if (!value.empty()) entry[key] = value;
}

json PortJson(const Port& port) {
  json entry{{"port", port.number},       {"link", port.link_layer}, {"state", port.state},
             {"physical", port.physical}, {"mbit_s", port.mbit_s},   {"fabric", port.of_fabric},
             {"gid_why", port.gid_why}};
  Put(entry, "width", port.width);
  Put(entry, "interface", port.interface);
  if (port.interface_mtu > 0) {
    entry["mtu"] = port.interface_mtu;
    entry["path_mtu"] = port.path_mtu;
  }
  if (port.link_layer == "InfiniBand") {
    entry["lid"] = port.lid;
    entry["sm_lid"] = port.sm_lid;
    entry["sm_sl"] = port.sm_sl;
  }
  if (port.gid_index) entry["gid_index"] = *port.gid_index;
  json gids = json::array();
  for (const Gid& gid : port.gids) {
    json one{{"index", gid.index}, {"address", gid.address}};
    Put(one, "type", gid.type);
    Put(one, "interface", gid.interface);
    gids.push_back(one);
  }
  entry["gids"] = gids;
  return entry;
}

json DeviceJson(const Device& device, const std::vector<PciPlace>& gpus) {
  json entry{{"device", device.name}, {"virtual_function", device.virtual_function}};
  Put(entry, "driver", device.driver);
  Put(entry, "firmware", device.firmware);
  Put(entry, "board", device.board);
  Put(entry, "guid", device.guid);
  Put(entry, "pci", device.place.address);
  Put(entry, "cpus", device.place.cpus);
  Put(entry, "pcie", device.pcie);
  Put(entry, "pcie_max", device.pcie_max);
  Put(entry, "iommu", device.iommu);
  if (device.place.numa >= 0) entry["numa"] = device.place.numa;
  if (device.relaxed_ordering) entry["relaxed_ordering"] = *device.relaxed_ordering;
  if (device.acs_known) entry["acs"] = device.acs;
  json distances = json::object();
  for (const PciPlace& gpu : gpus) {
    const std::string distance = Distance(device.place, gpu);
    if (!distance.empty()) distances[gpu.address] = distance;
  }
  entry["gpus"] = distances;
  json ports = json::array();
  for (const Port& port : device.ports) ports.push_back(PortJson(port));
  entry["ports"] = ports;
  return entry;
}

// What may make this host slow or mute. Sentences for people; the fields are in the document.
std::vector<std::string> Notes(const HostDevices& host) {
  std::vector<std::string> notes;
  for (const Device& device : host.devices) {
    const std::string& name = device.name;
    for (const Port& port : device.ports) {
      if (!port.Active()) {
        notes.push_back(fmt::format("{} port {} is {} ({}): rdma link show {}/{}{}", name, port.number,
                                    port.state, port.physical, name, port.number,
                                    port.interface.empty() ? "" : "; ip link show dev " + port.interface));
      } else if (port.RoCe() && (!port.of_fabric || !port.gid_index)) {
        notes.push_back(fmt::format("{} port {}: {}.", name, port.number, port.gid_why));
      }
      if (port.link_layer == "InfiniBand" && port.Active() && port.sm_lid == 0)
        notes.push_back(fmt::format("{} port {} knows no subnet manager.", name, port.number));
    }
    if (!device.pcie_max.empty() && device.pcie != device.pcie_max)
      notes.push_back(fmt::format("{} has PCIe {}, and could have {}.", name, device.pcie, device.pcie_max));
    if (device.relaxed_ordering == false)
      notes.push_back(fmt::format(
          "{}: relaxed ordering is off, which slows writes to GPUs on AMD's and others' CPUs.", name));
    if (!host.gpus.empty() && device.iommu.starts_with("DMA"))
      notes.push_back(fmt::format(
          "{}: the IOMMU translates its addresses, which slows GPUDirect: boot with iommu=pt.", name));
    if (!host.gpus.empty() && !device.acs.empty())
      notes.push_back(fmt::format("{}: ACS of {} sends what goes from it to a GPU through the CPU.", name,
                                  fmt::join(device.acs, ", ")));
  }
  const bool nvidia = std::ranges::find(host.gpus, fabric::kNvidia, &PciPlace::vendor) != host.gpus.end();
  if (!host.devices.empty() && nvidia && host.gpudirect.empty())
    notes.emplace_back(
        "No adapter reaches the memory of a GPU: load nvidia_peermem, or use NVIDIA's open kernel modules.");
  if (!host.devices.empty() && !host.memlock.empty() && host.memlock != "unlimited")
    notes.push_back(fmt::format("This process may lock {} bytes of memory; RDMA needs LimitMEMLOCK=infinity.",
                                host.memlock));
  return notes;
}

std::string Rate(int64_t mbit_s) {
  return mbit_s == 0 ? "-" : fmt::format("{:g} Gb/s", static_cast<double>(mbit_s) / 1000);
}

std::string Text(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end()) return "-";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// "0000:1b:00.0 (PIX)": of all GPUs the nearest, while they are not all as far.
std::string Nearest(const json& distances) {
  std::vector<std::string> nearest;
  std::string best;
  for (const auto& [gpu, distance] : distances.items()) {
    if (best.empty() || fabric::Rank(distance) < fabric::Rank(best)) {
      best = distance;
      nearest.clear();
    }
    if (distance == best) nearest.push_back(gpu);
  }
  if (nearest.empty()) return "-";
  if (nearest.size() > 2) return fmt::format("{} of them ({})", nearest.size(), best);
  return fmt::format("{} ({})", fmt::join(nearest, " "), best);
}

std::string Chosen(const json& port) {
  for (const json& gid : port.at("gids")) {
    if (port.contains("gid_index") && gid.at("index") == port.at("gid_index"))
      return fmt::format("{} {}", gid.at("index").get<int>(), gid.at("address").get<std::string>());
  }
  return "-";
}

}  // namespace

Result<Answered> ShowDevices(const roce::Host& host, const roce::Settings& settings,
                             const std::string& device) {
  HostDevices found = fabric::LookAtDevices(host, settings);
  std::vector<std::string> names;
  for (const Device& one : found.devices) names.push_back(one.name);
  if (!device.empty()) {
    std::erase_if(found.devices, [&](const Device& one) { return one.name != device; });
    if (found.devices.empty()) {
      return Error{Errc::kInvalid, names.empty()
                                       ? fmt::format("'{}' is no RDMA device: this host has none", device)
                                       : fmt::format("'{}' is no RDMA device of this host: it has {}", device,
                                                     fmt::join(names, ", "))};
    }
  }
  json devices = json::array();
  for (const Device& one : found.devices) devices.push_back(DeviceJson(one, found.gpus));
  json gpus = json::array();
  for (const PciPlace& gpu : found.gpus) gpus.push_back({{"pci", gpu.address}, {"numa", gpu.numa}});
  json document{{"devices", devices}, {"gpus", gpus}, {"notes", Notes(found)}};
  Put(document, "gpudirect", found.gpudirect);
  Put(document, "memlock", found.memlock);
  return Answered{document, kGood};
}

std::string DevicesText(const json& document) {
  if (document.at("devices").empty()) return "this host has no RDMA device\n";
  std::vector<Row> rows{{"DEVICE", "PORT", "LINK", "STATE", "RATE", "INTERFACE", "MTU", "GID", "FIRMWARE",
                         "PCI", "NUMA", "NEAREST GPU"}};
  for (const json& device : document.at("devices")) {
    for (const json& port : device.at("ports")) {
      rows.push_back({device.at("device"), Text(port, "port"), Text(port, "link"), Text(port, "state"),
                      Rate(port.at("mbit_s")), Text(port, "interface"), Text(port, "mtu"), Chosen(port),
                      Text(device, "firmware"), Text(device, "pci"), Text(device, "numa"),
                      Nearest(device.at("gpus"))});
    }
  }
  std::string text = Table(rows);
  for (const json& note : document.at("notes")) text += fmt::format("{}\n", note.get<std::string>());
  return text;
}

Result<Answered> ShowEnvironment(const roce::Host& host, const roce::Settings& settings,
                                 const std::string& nccl) {
  const auto version = fabric::ParseNcclVersion(nccl);
  if (!nccl.empty() && !version)
    return Error{Errc::kInvalid, fmt::format("'{}' is no version of NCCL: give it as in 2.19.3", nccl)};
  const auto interfaces = FabricNames(host, settings);
  json variables = json::array();
  for (const fabric::Variable& variable :
       NcclEnvironment(fabric::LookAtDevices(host, settings), interfaces, settings, version)) {
    json entry{{"key", variable.key}, {"value", variable.value}, {"why", variable.why}};
    if (variable.in_file) entry["file"] = kNcclConf;
    const char* own = std::getenv(variable.key.c_str());
    if (own != nullptr && own != variable.value) entry["yours"] = own;
    variables.push_back(entry);
  }
  return Answered{{{"networks", settings.networks_text}, {"variables", variables}}, kGood};
}

std::string EnvironmentText(const json& document) {
  const std::string networks = document.at("networks");
  if (networks.empty()) return "# The settings name no networks: NCCL chooses for itself.\n";
  if (document.at("variables").empty())
    return fmt::format("# No interface has an address in {}.\n", networks);
  std::string text;
  for (const json& variable : document.at("variables")) {
    const std::string key = variable.at("key");
    const std::string value = variable.at("value");
    const std::string why = variable.at("why");
    if (variable.contains("file")) {
      text += fmt::format("# {} is set in {}, and stays. Muster's is {}: {}.\n", key, kNcclConf, value, why);
    } else if (variable.contains("yours")) {
      text += fmt::format("# {}={} is yours, and stays. Muster's is {}: {}.\n", key,
                          variable.at("yours").get<std::string>(), value, why);
    } else {
      text += fmt::format("export {}={}  # {}\n", key, value, why);
    }
  }
  return text;
}

}  // namespace muster::cli
