#include "net/collectives/local_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "base/own_name.h"
#include "base/unique_fd.h"
#include "net/rendezvous/socket.h"

namespace muster {
namespace {

// An address is this host's when a socket can be bound to it.
bool IsBoundHere(const addrinfo& address) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.valid() && ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

}  // namespace

std::optional<std::string> OwnNameAddress() {
  const std::string name = OwnName();
  if (name.empty()) return std::nullopt;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(address->ai_addr, address->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) != 0) {
      continue;
    }
    if (!rendezvous::IsLoopback(text.data()) && IsBoundHere(*address)) return std::string(text.data());
  }
  return std::nullopt;
}

}  // namespace muster
