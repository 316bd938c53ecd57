#include "net/roce/gids.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace muster::roce {

std::string GidAddress(const std::string& line) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, line.c_str(), &address) != 1) return "";
  const auto* bytes = address.s6_addr;
  const bool no_interface = std::all_of(bytes + 8, bytes + 16, [](uint8_t byte) { return byte == 0; });
  // All zeros, or a subnet's prefix alone.
  if (no_interface && (bytes[0] == 0 || (bytes[0] == 0xfe && bytes[1] == 0x80))) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, bytes + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, bytes, text.data(), text.size());
  }
  return text.data();
}

bool OfFabric(const std::vector<Network>& networks, const Gid& gid) {
  return std::ranges::any_of(networks, [&](const Network& network) { return network.Has(gid.address); });
}

const Gid* BestGid(const std::vector<Gid>& gids, const std::vector<Network>& networks,
                   const std::string& interface) {
  const auto worth = [&](const Gid& gid) {
    const bool four = gid.address.find(':') == std::string::npos;
    return std::tuple(OfFabric(networks, gid), four, !gid.LinkLocal());
  };
  const Gid* best = nullptr;
  for (const Gid& gid : gids) {
    if (gid.type != "RoCE v2" || (!interface.empty() && gid.interface != interface)) continue;
    if (best == nullptr || worth(gid) > worth(*best)) best = &gid;
  }
  return best;
}

}  // namespace muster::roce
