// Where a node's datagrams go.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster {

// An IPv4 or IPv6 socket address by value.
struct BeatAddress {
  sockaddr_in6 storage{};  // holds a sockaddr_in too
  socklen_t size = 0;      // 0: none

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] bool valid() const { return size != 0; }
  friend bool operator==(const BeatAddress& a, const BeatAddress& b);
};

// Asks the resolver, which may block for seconds: never on the loop. `family`: AF_INET, AF_INET6 or AF_UNSPEC (what
// a daemon that listens on 0.0.0.0 can reach is AF_INET).
Result<BeatAddress> ResolveBeatAddress(const std::string& host, uint16_t port, int family = AF_INET);

// Of all nodes of a gang, by index; one that cannot be resolved is logged, and invalid. Blocks.
std::vector<BeatAddress> ResolveBeatAddresses(const std::vector<std::string>& hosts, uint16_t port);

}  // namespace muster
