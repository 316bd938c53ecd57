#include "daemon/beat/address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <memory>

namespace muster {

bool operator==(const BeatAddress& a, const BeatAddress& b) {
  if (a.size != b.size || a.storage.sin6_family != b.storage.sin6_family) return false;
  if (a.size == 0) return true;
  if (a.storage.sin6_family == AF_INET6) {
    return a.storage.sin6_port == b.storage.sin6_port &&
           std::memcmp(&a.storage.sin6_addr, &b.storage.sin6_addr, sizeof a.storage.sin6_addr) == 0;
  }
  const auto* first = reinterpret_cast<const sockaddr_in*>(&a.storage);
  const auto* second = reinterpret_cast<const sockaddr_in*>(&b.storage);
  return first->sin_port == second->sin_port && first->sin_addr.s_addr == second->sin_addr.s_addr;
}

Result<BeatAddress> ResolveBeatAddress(const std::string& host, uint16_t port, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    return Error{Errc::kNotFound, fmt::format("no address for {}: {}", host, ::gai_strerror(code))};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, ::freeaddrinfo);
  BeatAddress address;
  if (list->ai_addrlen > sizeof address.storage) {
    return Error{Errc::kInvalid, fmt::format("{} has an address of family {}", host, list->ai_family)};
  }
  std::memcpy(&address.storage, list->ai_addr, list->ai_addrlen);
  address.size = list->ai_addrlen;
  return address;
}

std::vector<BeatAddress> ResolveBeatAddresses(const std::vector<std::string>& hosts, uint16_t port) {
  std::vector<BeatAddress> addresses;
  addresses.reserve(hosts.size());
  for (const std::string& host : hosts) {
    auto address = ResolveBeatAddress(host, port);
    if (!address) spdlog::warn("{}: {}", host, address.error().message);
    addresses.push_back(address ? *address : BeatAddress());
  }
  return addresses;
}

}  // namespace muster
