#include "net/preflight/tcp_probe.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "net/preflight/other_traffic.h"
#include "net/preflight/verbs_probe.h"
#include "net/rendezvous/socket.h"

namespace muster::preflight {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A peer that is there answers at once. The kernel would send a second SYN after a second: who has lost the first is asked again.
constexpr milliseconds kConnect{700};
// What the other side may be late by.
constexpr milliseconds kGrace{700};
// A sender of RDMA waits so long for its last writes.
constexpr milliseconds kVerbsEnd{4'000};
// So long the sender says nothing when it is connected: what is in the way's queues has gone before its first packet. The receiver looks
// at a part of that.
constexpr milliseconds kSilence{10};
constexpr milliseconds kLook{5};
constexpr size_t kSmall = 32;  // bytes
constexpr size_t kMaxDatagram = 9'000;
constexpr size_t kBlock = 256 * 1024;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] bool Six() const { return storage.ss_family == AF_INET6; }
};

std::optional<Address> Parse(const std::string& text, uint16_t port) {
  Address address;
  auto* four = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    address.size = sizeof(*four);
    return address;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    address.size = sizeof(*six);
    return address;
  }
  return std::nullopt;
}

template <typename T>
void Option(int fd, int level, int name, T value) {
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

// What begins each datagram and each connection.
using Mark = std::array<char, 16>;

Mark MarkOf(uint64_t id) {
  Mark mark{'m', 'u', 's', 't', 'e', 'r', 'p', 'f'};
  std::memcpy(mark.data() + 8, &id, sizeof(id));
  return mark;
}

std::string Text(int error) {
  return std::strerror(error);
}

bool WaitFor(int fd, short events, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void SetClass(int fd, bool six, uint8_t traffic_class) {
  if (six) {
    Option(fd, IPPROTO_IPV6, IPV6_TCLASS, static_cast<int>(traffic_class));
  } else {
    Option(fd, IPPROTO_IP, IP_TOS, static_cast<int>(traffic_class));
  }
}

// A large datagram is as large as the way's MTU, as this end knows it, and must not be cut.
void SendDatagrams(const Order& order, const Address& own, const Address& peer) {
  const UniqueFd fd(::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  const bool six = peer.Six();
  SetClass(fd.get(), six, order.traffic_class);
  Option(fd.get(), six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER,
         six ? IPV6_PMTUDISC_PROBE : IP_PMTUDISC_PROBE);
  if (own.size != 0) (void)::bind(fd.get(), own.get(), own.size);
  if (::connect(fd.get(), peer.get(), peer.size) != 0) return;
  int mtu = 0;
  socklen_t size = sizeof(mtu);
  if (::getsockopt(fd.get(), six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &mtu, &size) != 0)
    mtu = 1'280;
  const size_t headers = six ? 48 : 28;
  const size_t large =
      std::clamp<size_t>(static_cast<size_t>(std::max(mtu, 1'280)) - headers, kSmall, kMaxDatagram - headers);
  std::vector<char> bytes(large, 'p');
  const Mark mark = MarkOf(order.id);
  std::copy(mark.begin(), mark.end(), bytes.begin());
  for (uint32_t i = 0; i < kDatagrams; ++i) {
    (void)::send(fd.get(), bytes.data(), kSmall, MSG_NOSIGNAL);
    (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
}

Result<UniqueFd> Connect(const Order& order, const Address& own, const Address& peer) {
  UniqueFd fd(::socket(peer.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Error{Errc::kUnavailable, Text(errno)};
  SetClass(fd.get(), peer.Six(), order.traffic_class);
  if (order.rate_mbit_s > 0) {
    Option(fd.get(), SOL_SOCKET, SO_MAX_PACING_RATE, order.Pace());
    // Some milliseconds of it are under way at most, so that the next measurement finds an empty link.
    Option(fd.get(), SOL_SOCKET, SO_SNDBUF,
           static_cast<int>(
               std::clamp<int64_t>(order.rate_mbit_s * 1'000 / 8 * 5, 32 * 1024, 16 * 1024 * 1024)));
  }
  if (own.size != 0 && ::bind(fd.get(), own.get(), own.size) != 0)
    return Error{Errc::kUnavailable, Text(errno)};
  if (::connect(fd.get(), peer.get(), peer.size) != 0 && errno != EINPROGRESS)
    return Error{Errc::kUnavailable, Text(errno)};
  if (!WaitFor(fd.get(), POLLOUT, Clock::now() + kConnect)) return Error{Errc::kUnavailable, "no answer"};
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return Error{Errc::kUnavailable, Text(error)};
  return fd;
}

uint16_t PortOf(int fd) {
  Address bound;
  bound.size = sizeof(bound.storage);
  if (::getsockname(fd, bound.get(), &bound.size) != 0) return 0;
  return ntohs(bound.Six() ? reinterpret_cast<const sockaddr_in6*>(&bound.storage)->sin6_port
                           : reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
}

// The connection of this measurement: others are of earlier ones, which have ended.
UniqueFd Accept(int listening, uint64_t id, Clock::time_point until) {
  const Mark wanted = MarkOf(id);
  while (WaitFor(listening, POLLIN, until)) {
    UniqueFd fd(::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) continue;
    Mark mark{};
    size_t got = 0;
    while (got < mark.size() && WaitFor(fd.get(), POLLIN, until)) {
      const ssize_t part = ::recv(fd.get(), mark.data() + got, mark.size() - got, 0);
      if (part <= 0) break;
      got += static_cast<size_t>(part);
    }
    if (got == mark.size() && mark == wanted) return fd;
  }
  return {};
}

void CountDatagrams(int fd, uint64_t id, Received& received) {
  const Mark wanted = MarkOf(id);
  std::vector<char> bytes(kMaxDatagram);
  for (;;) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) return;
    if (static_cast<size_t>(got) < wanted.size() || !std::equal(wanted.begin(), wanted.end(), bytes.begin()))
      continue;
    ++(static_cast<size_t>(got) > kSmall ? received.large_heard : received.small_heard);
  }
}

void ReceiveData(int socket, const Order& order, Received& received) {
  const auto from = Clock::now();
  const auto counts = from + order.duration / 5;
  const auto end = from + order.duration;
  std::vector<char> block(kBlock);
  uint64_t bytes = 0;
  auto first = end;
  auto last = from;
  for (;;) {
    const ssize_t got = ::recv(socket, block.data(), block.size(), 0);
    const auto now = Clock::now();
    if (got == 0 || now >= end) break;
    if (got < 0) {
      const int error = errno;
      if (error == EINTR || (error == EAGAIN && WaitFor(socket, POLLIN, end))) continue;
      if (error != EAGAIN) received.error = Text(error);
      break;
    }
    if (now < counts) continue;
    if (first == end) {
      first = now;  // what has come so far belongs to the time before
    } else {
      bytes += static_cast<uint64_t>(got);
    }
    last = now;
  }
  // A link that goes silent in between is as slow as the whole time says.
  const auto whole = std::max(last, received.error.empty() ? Clock::now() : last) - std::min(first, last);
  const double seconds = std::chrono::duration<double>(whole).count();
  if (bytes > 0 && seconds > 0) received.mbit_s = static_cast<double>(bytes) * 8 / seconds / 1e6;
}

milliseconds PingTime(const Order& order) {
  return order.duration / 5;
}

// The adapter receives; this process only keeps the memory until the sender has ended.
void ReceiveWrites(int socket, const Order& order, const VerbsPort& verbs, Received& received) {
  auto endpoint = VerbsEndpoint::Open(verbs);
  if (!endpoint) {
    received.error = endpoint.error().message;
    RefuseEndpoint(socket, received.error);
    return;
  }
  if (Status connected = endpoint->Connect(socket); !connected) {
    received.error = connected.error().message;
    return;
  }
  endpoint->AnswerPings(socket, PingTime(order));
  char byte = 0;
  const auto end = Clock::now() + order.duration + kVerbsEnd;
  while (WaitFor(socket, POLLIN, end) && ::recv(socket, &byte, 1, 0) > 0) {
  }
}

// What goes through a connection whose mark is sent.
void SendData(int socket, const Order& order, Sent& sent) {
  const std::vector<char> block(kBlock, 'd');
  // The receiver ends it; a little longer, in case it began later.
  const auto end = Clock::now() + order.duration + kGrace;
  while (Clock::now() < end) {
    if (::send(socket, block.data(), block.size(), MSG_NOSIGNAL) >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN || !WaitFor(socket, POLLOUT, end)) break;  // it has closed
  }
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
    sent.packets = info.tcpi_data_segs_out;
    // What the other side has had twice was late, not lost.
    sent.lost = info.tcpi_total_retrans - std::min(info.tcpi_total_retrans, info.tcpi_dsack_dups);
    if (info.tcpi_min_rtt != ~0U) sent.latency_us = info.tcpi_min_rtt / 2.0;  // ~0: it has seen none
  }
}

void SendWrites(int socket, const Order& order, const VerbsPort& verbs, Sent& sent) {
  auto endpoint = VerbsEndpoint::Open(verbs);
  if (!endpoint) {
    sent.error = endpoint.error().message;
    RefuseEndpoint(socket, sent.error);
    return;
  }
  if (Status connected = endpoint->Connect(socket); !connected) {
    sent.error = connected.error().message;
    return;
  }
  const auto latency = endpoint->Ping(PingTime(order));
  if (!latency) {
    sent.error = latency.error().message;
    return;
  }
  sent.latency_us = *latency;
  // The other side need not look into its memory any more.
  const std::byte over{};
  if (Status said = rendezvous::SendAll(socket, std::span(&over, 1), Clock::now() + kGrace); !said) {
    sent.error = said.error().message;
    return;
  }
  const auto rate = endpoint->Write(order.duration, order.Pace());
  if (rate) {
    sent.mbit_s = *rate;
  } else {
    sent.error = rate.error().message;
  }
}

}  // namespace

Result<ProbeSockets> ProbeSockets::Open(const std::string& address) {
  // Of a kernel without IPv6 too.
  const UniqueFd six(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const std::string on = !address.empty() ? address : six.valid() ? "::" : "0.0.0.0";
  const auto where = Parse(on, 0);
  if (!where) return Error{Errc::kInvalid, fmt::format("'{}' is no address", address)};
  // A port that is free for TCP may be taken for UDP: then another one.
  for (int attempt = 0; attempt < 20; ++attempt) {
    ProbeSockets sockets;
    sockets.tcp_.reset(::socket(where->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockets.udp_.reset(::socket(where->storage.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!sockets.tcp_.valid() || !sockets.udp_.valid()) return Error{Errc::kUnavailable, Text(errno)};
    if (::bind(sockets.tcp_.get(), where->get(), where->size) != 0 || ::listen(sockets.tcp_.get(), 64) != 0)
      return Error{Errc::kUnavailable, fmt::format("listening on '{}': {}", address, Text(errno))};
    sockets.port_ = PortOf(sockets.tcp_.get());
    const auto same = Parse(on, sockets.port_);
    if (::bind(sockets.udp_.get(), same->get(), same->size) == 0) return sockets;
  }
  return Error{Errc::kUnavailable, "no port is free for TCP and UDP"};
}

Received ProbeSockets::Receive(const Order& order, const Rail& rail) const {
  Received received;
  const auto began = Clock::now();
  const UniqueFd fd = Accept(tcp_.get(), order.id, began + kConnect + kGrace);
  if (!fd.valid()) {
    received.error = "no connection came";
    CountDatagrams(udp_.get(), order.id, received);
    return received;
  }
  received.other_mbit_s = OtherTraffic(rail, Flow::kIn, fd.get(), kLook);
  if (order.verbs) {
    ReceiveWrites(fd.get(), order, rail.verbs, received);
  } else {
    ReceiveData(fd.get(), order, received);
  }
  CountDatagrams(udp_.get(), order.id, received);
  return received;
}

Sent Send(const Order& order, const Rail& rail) {
  Sent sent;
  const auto peer = Parse(order.address, order.port);
  if (!peer) {
    sent.error = fmt::format("'{}' is no address", order.address);
    return sent;
  }
  const Address self = rail.address.empty() ? Address{} : Parse(rail.address, 0).value_or(Address{});
  SendDatagrams(order, self, *peer);
  const auto fd = Connect(order, self, *peer);
  if (!fd) {
    sent.error = fd.error().message;
    return sent;
  }
  sent.connected = true;
  const Mark mark = MarkOf(order.id);
  if (Status marked = rendezvous::SendAll(fd->get(), std::as_bytes(std::span(mark)), Clock::now() + kGrace);
      !marked) {
    sent.error = marked.error().message;
    return sent;
  }
  sent.other_mbit_s = OtherTraffic(rail, Flow::kOut, -1, kSilence);
  if (order.verbs) {
    SendWrites(fd->get(), order, rail.verbs, sent);
  } else {
    SendData(fd->get(), order, sent);
  }
  return sent;
}

}  // namespace muster::preflight
