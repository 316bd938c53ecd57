#include "net/rendezvous/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <thread>

namespace muster::rendezvous {
namespace {

using std::chrono::milliseconds;

std::string Text(int error) {
  return std::generic_category().message(error);
}

Error Unavailable(std::string what, int error) {
  return Error{Errc::kUnavailable, std::move(what) + ": " + Text(error)};
}

// Waits until `events` hold for the socket: 0, ETIMEDOUT, or another errno.
int Wait(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return ETIMEDOUT;
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
  }
}

void SetNoDelay(int fd) {
  // Best effort: a request is one small message and its reply; without this Nagle's algorithm may hold it
  // back.
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Result<UniqueFd> ListenOn(int family, const sockaddr* address, socklen_t bytes) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Unavailable("creating a listening socket", errno);
  const int on = 1;
  const int off = 0;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      (family == AF_INET6 && ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0)) {
    return Unavailable("setting options of a listening socket", errno);
  }
  if (::bind(fd.get(), address, bytes) != 0) return Unavailable("binding", errno);
  if (::listen(fd.get(), SOMAXCONN) != 0) return Unavailable("listening", errno);
  return fd;
}

// An address that swallows packets must not use up the time of the others.
constexpr milliseconds kAttempt(3000);

// One attempt at one address: 0 and the socket, or an errno.
int ConnectOnce(const addrinfo& address, Deadline deadline, UniqueFd& out) {
  deadline = std::min(deadline, std::chrono::steady_clock::now() + kAttempt);
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (const int error = Wait(fd.get(), POLLOUT, deadline); error != 0) return error;
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
    if (error != 0) return error;
  }
  SetNoDelay(fd.get());
  out = std::move(fd);
  return 0;
}

}  // namespace

Result<UniqueFd> Listen(std::uint16_t port) {
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_addr = in6addr_any;
  any6.sin6_port = htons(port);
  Result<UniqueFd> both = ListenOn(AF_INET6, reinterpret_cast<const sockaddr*>(&any6), sizeof(any6));
  if (both) return both;
  // A kernel without IPv6. When the port is taken this fails too, and its message is the one to show.
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_addr.s_addr = htonl(INADDR_ANY);
  any4.sin_port = htons(port);
  Result<UniqueFd> only = ListenOn(AF_INET, reinterpret_cast<const sockaddr*>(&any4), sizeof(any4));
  if (only) return only;
  return Error{Errc::kUnavailable, "rendezvous: listening on port " + std::to_string(port) + ": " +
                                       only.error().message +
                                       " (is another job using MASTER_PORT on this host?)"};
}

Result<std::uint16_t> LocalPort(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    return Unavailable("getsockname", errno);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Result<std::string> LocalAddress(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    return Unavailable("getsockname", errno);
  std::array<char, NI_MAXHOST> host{};
  const int error = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host.data(),
                                  host.size(), nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return Error{Errc::kInternal, std::string("getnameinfo: ") + ::gai_strerror(error)};
  return std::string(host.data());
}

bool IsLoopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.") || address.starts_with("::ffff:127.");
}

Result<UniqueFd> ConnectUntil(const std::string& host, std::uint16_t port, Deadline deadline) {
  const std::string service = std::to_string(port);
  const std::string endpoint = host + " port " + service;
  std::string last = "no attempt was made before the deadline";
  milliseconds pause(2);
  while (std::chrono::steady_clock::now() < deadline) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
    if (error != 0) last = ::gai_strerror(error);
    for (const addrinfo* address = found; error == 0 && address != nullptr; address = address->ai_next) {
      UniqueFd fd;
      const int failed = ConnectOnce(*address, deadline, fd);
      if (failed == 0) return fd;
      last = Text(failed);
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(
        pause, std::max(std::chrono::nanoseconds(0),
                        std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()))));
    pause = std::min(pause * 2, milliseconds(50));
  }
  return Error{Errc::kUnavailable, "rendezvous: connecting to rank 0 at " + endpoint + ": " + last};
}

Status SendAll(int fd, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = Wait(fd, POLLOUT, deadline); error != 0) return Unavailable("sending", error);
    } else if (errno != EINTR) {
      return Unavailable("sending", errno);
    }
  }
  return {};
}

Result<std::size_t> ReceiveSome(int fd, std::span<std::byte> buffer, Deadline deadline) {
  for (;;) {
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return Error{Errc::kUnavailable, "the other side closed the connection"};
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = Wait(fd, POLLIN, deadline); error != 0) return Unavailable("receiving", error);
    } else if (errno != EINTR) {
      return Unavailable("receiving", errno);
    }
  }
}

}  // namespace muster::rendezvous
