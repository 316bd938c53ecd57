#include "net/roce/fabric_interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "base/small_files.h"

namespace muster::roce {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLower = "lower_";
constexpr std::string_view kKind = "DEVTYPE=";
constexpr int kMostLevels = 8;

// The leading ones of a netmask.
int PrefixOf(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  std::string bytes;
  if (mask->sa_family == AF_INET)
    bytes.assign(reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr),
                 sizeof(in_addr));
  if (mask->sa_family == AF_INET6)
    bytes.assign(reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr),
                 sizeof(in6_addr));
  int ones = 0;
  for (const char byte : bytes) ones += std::popcount(static_cast<unsigned char>(byte));
  return ones;
}

std::vector<HostAddress> OwnAddresses() {
  std::vector<HostAddress> addresses;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(found, &::freeifaddrs);
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* bits = nullptr;
    if (one->ifa_addr->sa_family == AF_INET)
      bits = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (one->ifa_addr->sa_family == AF_INET6)
      bits = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    if (bits != nullptr && ::inet_ntop(one->ifa_addr->sa_family, bits, text.data(), text.size()) != nullptr)
      addresses.push_back({one->ifa_name, text.data(), PrefixOf(one->ifa_netmask)});
  }
  return addresses;
}

// An RDMA device has no link to its interface that all drivers make; each GID names the interface that it is of.
std::vector<RdmaPort> PortsOf(const Host& host, const std::string& interface) {
  std::vector<RdmaPort> ports;
  const std::string devices = host.root + "/sys/class/infiniband";
  for (const std::string& device : ListDirectory(devices)) {
    for (const std::string& port : ListDirectory(devices + "/" + device + "/ports")) {
      const std::string names = devices + "/" + device + "/ports/" + port + "/gid_attrs/ndevs";
      const auto gids = ListDirectory(names);
      if (std::ranges::any_of(gids,
                              [&](const auto& gid) { return ReadLine(names + "/" + gid) == interface; }))
        ports.push_back({device, port});
    }
  }
  return ports;
}

std::string NetDirectory(const Host& host, const std::string& interface) {
  return host.root + "/sys/class/net/" + interface;
}

// The interfaces that an interface is made of. The kernel links each as lower_NAME.
std::vector<std::string> InterfacesBelow(const Host& host, const std::string& interface) {
  std::vector<std::string> below;
  for (const std::string& entry : ListDirectory(NetDirectory(host, interface))) {
    if (entry.starts_with(kLower)) below.push_back(entry.substr(kLower.size()));
  }
  return below;
}

// Below an interface in the end; `depth` ends a recorded tree that leads around.
void AddPorts(const Host& host, const std::string& interface, int depth, std::vector<PhysicalPort>& ports) {
  const std::string device = NetDirectory(host, interface) + "/device";
  const auto below = InterfacesBelow(host, interface);
  const std::string driver = LinkName(device + "/driver");
  if (driver.empty() && !below.empty() && depth < kMostLevels) {
    for (const std::string& name : below) AddPorts(host, name, depth + 1, ports);
  } else if (std::ranges::find(ports, interface, &PhysicalPort::name) == ports.end()) {
    const std::string bus = LinkName(device + "/subsystem");
    ports.push_back({interface, driver, bus == "pci" ? LinkName(device) : ""});
  }
}

// "bond", "vlan", "bridge".
std::string KindOf(const Host& host, const std::string& interface) {
  const auto uevent = ReadSmallFile(NetDirectory(host, interface) + "/uevent");
  for (const std::string& line : Words(uevent.value_or(""), "\n")) {
    if (line.starts_with(kKind)) return line.substr(kKind.size());
  }
  return "";
}

std::vector<HostAddress> FabricAddresses(const Host& host, const Settings& settings) {
  auto addresses = host.addresses();
  std::erase_if(addresses, [&](const HostAddress& own) {
    return std::ranges::none_of(settings.networks,
                                [&](const Network& network) { return network.Has(own.text); });
  });
  return addresses;
}

}  // namespace

std::string LinkName(const std::string& path) {
  std::error_code ignored;
  return fs::read_symlink(path, ignored).filename();
}

std::string StateName(const std::string& line) {
  const size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

Host ThisHost() {
  return {
      "",
      [](std::vector<std::string> words) { return RunProgram(std::move(words), std::chrono::seconds(20)); },
      OwnAddresses};
}

// "NCCL_IB_TC=106" in each line; a line may be a comment.
std::map<std::string, std::string> ReadNcclConf(const Host& host) {
  std::map<std::string, std::string> values;
  const auto text = ReadSmallFile(host.root + "/etc/nccl.conf");
  for (const std::string& line : Words(text.value_or(""), "\n")) {
    const size_t equals = line.find('=');
    const auto key = Words(line.substr(0, equals));
    if (equals == std::string::npos || key.empty() || key[0].starts_with("#")) continue;
    values[key[0]] = fmt::format("{}", fmt::join(Words(line.substr(equals + 1)), " "));
  }
  return values;
}

std::vector<std::string> FabricNames(const Host& host, const Settings& settings) {
  std::set<std::string> names;
  for (const HostAddress& own : FabricAddresses(host, settings)) names.insert(own.interface);
  return {names.begin(), names.end()};
}

std::vector<Interface> FabricInterfaces(const Host& host, const Settings& settings) {
  std::map<std::string, std::vector<HostAddress>> by_name;
  for (HostAddress& own : FabricAddresses(host, settings)) by_name[own.interface].push_back(std::move(own));
  std::vector<Interface> found;
  for (auto& [name, addresses] : by_name) {
    Interface interface { name, "", std::move(addresses), {}, {}, PortsOf(host, name) };
    AddPorts(host, name, 0, interface.ports);
    const PhysicalPort& first = interface.ports.front();
    interface.driver = first.name == name ? first.driver : KindOf(host, name);
    for (std::string above = name; KindOf(host, above) == "vlan" && interface.parents.size() < kMostLevels;) {
      const auto below = InterfacesBelow(host, above);
      if (below.empty()) break;  // in another network namespace
      above = below.front();
      interface.parents.insert(interface.parents.begin(), above);
    }
    found.push_back(std::move(interface));
  }
  return found;
}

}  // namespace muster::roce
