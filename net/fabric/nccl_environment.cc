#include "net/fabric/nccl_environment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/small_files.h"

namespace muster::fabric {
namespace {

// From this one on NCCL finds the index of a port's GID of RoCE v2 itself, for each port anew.
constexpr int kFindsGidMajor = 2;
constexpr int kFindsGidMinor = 21;

// An adapter sends a packet again after 4.096 us x 2^18 = 1.07 s without an answer, seven times: a path that is dead ends the
// operation after 9 s at the earliest, where NCCL's own 2^20 needs 34 s. A port or a switch that is away for a few seconds ends
// nothing. Muster has found a lost node long before either.
constexpr int kTimeoutExponent = 18;
constexpr int kRetries = 7;

bool IsSix(const roce::Gid& gid) {
  return gid.address.find(':') != std::string::npos;
}

const roce::Gid& ChosenGid(const Port& port) {
  return *std::ranges::find(port.gids, *port.gid_index, &roce::Gid::index);
}

// The GID that NCCL finds itself: the first one of RoCE v2 with an address of the family, in whichever network.
const roce::Gid* NcclsOwnGid(const Port& port, bool six) {
  const auto found = std::ranges::find_if(port.gids, [&](const roce::Gid& gid) {
    return gid.type == "RoCE v2" && IsSix(gid) == six && !gid.LinkLocal();
  });
  return found == port.gids.end() ? nullptr : &*found;
}

// What such an NCCL needs to find the GIDs of the fabric: one family and one prefix for all ports.
void AddGidSearch(const std::vector<const Port*>& ports, const roce::Settings& settings,
                  std::vector<Variable>& variables) {
  const bool six = std::ranges::all_of(ports, [](const Port* port) { return IsSix(ChosenGid(*port)); });
  if (six) variables.push_back({"NCCL_IB_ADDR_FAMILY", "AF_INET6", "NCCL looks for GIDs of IPv4 otherwise"});
  const bool finds = std::ranges::all_of(
      ports, [&](const Port* port) { return NcclsOwnGid(*port, six) == &ChosenGid(*port); });
  if (finds || settings.networks.size() != 1) return;
  variables.push_back({"NCCL_IB_ADDR_RANGE", Words(settings.networks_text, ", ").front(),
                       "a port has a GID of RoCE v2 outside of it, which NCCL would find first"});
}

std::vector<Variable> Wanted(const HostDevices& devices, const std::vector<std::string>& interfaces,
                             const roce::Settings& settings, std::optional<NcclVersion> version) {
  std::vector<Variable> variables;
  if (settings.networks.empty() || interfaces.empty()) return variables;
  std::vector<std::string> adapters;
  std::vector<const Port*> ports;
  for (const Device& device : devices.devices) {
    for (const Port& port : device.ports) {
      if (!port.of_fabric || !port.Active() || !port.gid_index) continue;
      adapters.push_back(fmt::format("{}:{}", device.name, port.number));
      ports.push_back(&port);
    }
  }
  variables.push_back({"NCCL_SOCKET_IFNAME", fmt::format("={}", fmt::join(interfaces, ",")),
                       fmt::format("the interfaces with an address in {}", settings.networks_text)});
  if (adapters.empty()) return variables;
  variables.push_back({"NCCL_IB_HCA", fmt::format("={}", fmt::join(adapters, ",")),
                       "the ports of the fabric that are up, by their whole names"});
  variables.push_back(
      {"NCCL_IB_TC", std::to_string(settings.TrafficClass()),
       fmt::format("DSCP {} with the bits {} for congestion marks", settings.dscp, settings.ecn_bits)});
  variables.push_back(
      {"NCCL_IB_TIMEOUT", std::to_string(kTimeoutExponent),
       "a path that is dead ends an operation after 9 s, a port that is away for 5 s ends none"});
  variables.push_back({"NCCL_IB_RETRY_CNT", std::to_string(kRetries), "NCCL's own, which that time needs"});
  const int index = *ports.front()->gid_index;
  if (!version || !version->Before(kFindsGidMajor, kFindsGidMinor)) {
    AddGidSearch(ports, settings, variables);
  } else if (std::ranges::all_of(ports, [&](const Port* port) { return port->gid_index == index; })) {
    variables.push_back(
        {"NCCL_IB_GID_INDEX", std::to_string(index),
         fmt::format("NCCL {}.{} does not look for the GID of RoCE v2, and all ports have it there",
                     version->major, version->minor)});
  }
  return variables;
}

}  // namespace

std::optional<NcclVersion> ParseNcclVersion(const std::string& text) {
  const auto parts = Words(text, ".");
  if (parts.size() < 2 || parts.size() > 4) return std::nullopt;
  std::vector<int> numbers;
  for (const std::string& part : parts) {
    const auto number = ParseDecimal(part);
    if (!number || *number > 999 || part.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    numbers.push_back(static_cast<int>(*number));
  }
  return NcclVersion{numbers[0], numbers[1]};
}

std::vector<Variable> NcclEnvironment(const HostDevices& devices, const std::vector<std::string>& interfaces,
                                      const roce::Settings& settings, std::optional<NcclVersion> version) {
  auto variables = Wanted(devices, interfaces, settings, version);
  for (Variable& one : variables) one.in_file = devices.nccl_conf.contains(one.key);
  return variables;
}

}  // namespace muster::fabric
