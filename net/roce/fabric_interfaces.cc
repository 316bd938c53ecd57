#include "net/roce/fabric_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <set>

#include "base/small_files.h"

namespace muster::roce {
namespace {

namespace fs = std::filesystem;

std::vector<std::pair<std::string, std::string>> OwnAddresses() {
  std::vector<std::pair<std::string, std::string>> addresses;
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
      addresses.emplace_back(one->ifa_name, text.data());
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

std::vector<std::string> FabricNames(const Host& host, const Settings& settings) {
  std::set<std::string> names;
  for (const auto& own : host.addresses()) {
    const auto has = [&own](const Network& network) { return network.Has(own.second); };
    if (std::ranges::any_of(settings.networks, has)) names.insert(own.first);
  }
  return {names.begin(), names.end()};
}

std::vector<Interface> FabricInterfaces(const Host& host, const Settings& settings) {
  std::vector<Interface> found;
  for (const std::string& name : FabricNames(host, settings)) {
    const std::string device = host.root + "/sys/class/net/" + name + "/device";
    const std::string bus = LinkName(device + "/subsystem");
    found.push_back(
        {name, LinkName(device + "/driver"), bus == "pci" ? LinkName(device) : "", PortsOf(host, name)});
  }
  return found;
}

}  // namespace muster::roce
