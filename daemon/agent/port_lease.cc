#include "daemon/agent/port_lease.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <random>

namespace muster {
namespace {

UniqueFd Bind(uint16_t port) {
  UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool v6 = fd.valid();
  if (!v6) fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int result = -1;
  if (v6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    result = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    result = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  if (result != 0) fd.reset();
  return fd;
}

// SO_REUSEADDR lets a bind succeed beside another holder's bound socket: only a trial listen tells that the
// port is free of listeners, and a bind without SO_REUSEADDR that nobody has bound it at all.
bool Free(uint16_t port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

Result<PortLease> PortLease::Take(uint16_t first, uint16_t last, uint16_t count) {
  const uint32_t places = last - first + 1U;
  if (places < count) {
    return Error{Errc::kInvalid,
                 fmt::format("{} ports are needed, {} to {} are allowed", count, first, last)};
  }
  std::random_device random;
  const uint32_t start = random() % (places - count + 1);
  for (uint32_t tried = 0; tried + count <= places; ++tried) {
    const uint32_t offset = (start + tried) % (places - count + 1);
    PortLease lease;
    lease.port_ = static_cast<uint16_t>(first + offset);
    for (uint16_t i = 0; i < count; ++i) {
      const auto port = static_cast<uint16_t>(lease.port_ + i);
      UniqueFd fd = Free(port) ? Bind(port) : UniqueFd();
      if (!fd.valid()) break;
      lease.sockets_.push_back(std::move(fd));
    }
    if (lease.sockets_.size() == count) return lease;
  }
  return Error{Errc::kExhausted,
               fmt::format("no {} free ports in a row between {} and {} (master_ports_first, _last)", count,
                           first, last)};
}

}  // namespace muster
