#include "tests/unit/daemon/beat_net.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace muster {
namespace {

constexpr int kMoment = 1;      // ms, real: what a thread sleeps that wants to look again soon
constexpr int kSoonRounds = 3;  // of them without anything to do: there is nothing

sockaddr_in AddressOf(uint32_t node, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + node);
  return address;
}

std::optional<uint32_t> NodeAt(const void* address) {
  sockaddr_in in{};
  std::memcpy(&in, address, sizeof in);
  if (in.sin_family != AF_INET || ntohl(in.sin_addr.s_addr) < INADDR_LOOPBACK) return std::nullopt;
  return ntohl(in.sin_addr.s_addr) - INADDR_LOOPBACK;
}

void Ring(const UniqueFd& bell) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(bell.get(), &one, sizeof one);
}

void Silence(const UniqueFd& bell) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(bell.get(), &count, sizeof count);
}

UniqueFd NewBell() {
  return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

}  // namespace

std::string BeatNet::HostOf(uint32_t node) {
  return fmt::format("127.0.0.{}", node + 1);
}

// ---- time

class BeatNet::Clock final : public BeatClock {
 public:
  explicit Clock(BeatNet& net) : net_(net), bell_(NewBell()) {
    const std::lock_guard lock(net_.clocks_mutex_);
    net_.clocks_.insert(this);
  }
  ~Clock() override {
    const std::lock_guard lock(net_.clocks_mutex_);
    net_.clocks_.erase(this);
  }

  [[nodiscard]] lease::Nanos Now() const override { return net_.now_; }

  void Wait(std::span<pollfd> polled, lease::Nanos timeout) override {
    std::vector<pollfd> all(polled.begin(), polled.end());
    all.push_back({bell_.get(), POLLIN, 0});
    const bool soon = timeout <= kMoment * lease::kMillisecond;
    {
      const std::lock_guard lock(mutex_);
      waiting_ = true;
      until_ = net_.now_ + timeout;
      all_ = all;
    }
    ::poll(all.data(), all.size(), soon ? kMoment : -1);
    const bool ready =
        std::any_of(all.begin(), all.end(), [](const pollfd& one) { return one.revents != 0; });
    {
      const std::lock_guard lock(mutex_);
      waiting_ = false;
      soon_rounds_ = ready ? 0 : soon_rounds_ + 1;
      if (ready) ++net_.activity_;
      Silence(bell_);
    }
    for (size_t i = 0; i < polled.size(); ++i) polled[i].revents = all[i].revents;
  }

  [[nodiscard]] bool Idle() {
    const std::lock_guard lock(mutex_);
    const bool waits = waiting_ && until_ > net_.now_ + kMoment * lease::kMillisecond;
    if (!waits && soon_rounds_ < kSoonRounds) return false;
    return ::poll(all_.data(), all_.size(), 0) == 0;
  }
  void Moved() {
    const std::lock_guard lock(mutex_);
    soon_rounds_ = 0;
    Ring(bell_);
  }

 private:
  BeatNet& net_;
  const UniqueFd bell_;
  std::mutex mutex_;
  bool waiting_ = false;
  lease::Nanos until_ = 0;
  std::vector<pollfd> all_;
  int soon_rounds_ = 0;
};

std::shared_ptr<BeatClock> BeatNet::NewClock() {
  return std::make_shared<Clock>(*this);
}

void BeatNet::Move(lease::Nanos time) {
  const std::lock_guard lock(clocks_mutex_);
  now_ += time;
  for (Clock* clock : clocks_) clock->Moved();
}

bool BeatNet::Idle() {
  const std::lock_guard lock(clocks_mutex_);
  return std::all_of(clocks_.begin(), clocks_.end(), [](Clock* clock) { return clock->Idle(); });
}

// ---- datagrams

class BeatNet::Socket final : public BeatSocket {
 public:
  Socket(BeatNet& net, uint32_t node) : net_(net), node_(node), bell_(NewBell()) {
    const std::lock_guard lock(net_.mutex_);
    net_.sockets_[node_] = this;
  }
  ~Socket() override {
    const std::lock_guard lock(net_.mutex_);
    if (net_.sockets_[node_] == this) net_.sockets_.erase(node_);
  }

  [[nodiscard]] int fd() const override { return bell_.get(); }
  [[nodiscard]] uint16_t port() const override { return net_.port_; }

  int Receive(std::span<mmsghdr> packets) override {
    const std::lock_guard lock(mutex_);
    Silence(bell_);
    size_t count = 0;
    for (; count < packets.size() && !inbox_.empty(); ++count) {
      const auto& [from, bytes] = inbox_.front();
      mmsghdr& packet = packets[count];
      packet.msg_len = static_cast<unsigned>(std::min<size_t>(bytes.size(), packet.msg_hdr.msg_iov->iov_len));
      std::memcpy(packet.msg_hdr.msg_iov->iov_base, bytes.data(), packet.msg_len);
      const sockaddr_in address = AddressOf(from, net_.port_);
      std::memcpy(packet.msg_hdr.msg_name, &address, sizeof address);
      packet.msg_hdr.msg_namelen = sizeof address;
      inbox_.pop_front();
    }
    if (!inbox_.empty()) Ring(bell_);
    return static_cast<int>(count);
  }

  int Send(std::span<mmsghdr> packets) override {
    for (mmsghdr& packet : packets) {
      const iovec& bytes = *packet.msg_hdr.msg_iov;
      if (const auto to = NodeAt(packet.msg_hdr.msg_name))
        net_.Datagram(node_, {static_cast<const uint8_t*>(bytes.iov_base), bytes.iov_len}, *to);
    }
    return static_cast<int>(packets.size());
  }

  void Put(uint32_t from, std::span<const uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    inbox_.emplace_back(from, std::vector<uint8_t>(bytes.begin(), bytes.end()));
    Ring(bell_);
  }

 private:
  BeatNet& net_;
  const uint32_t node_;
  const UniqueFd bell_;
  std::mutex mutex_;
  std::deque<std::pair<uint32_t, std::vector<uint8_t>>> inbox_;
};

std::shared_ptr<BeatSocket> BeatNet::NewSocket(uint32_t node) {
  return std::make_shared<Socket>(*this, node);
}

void BeatNet::Datagram(uint32_t from, std::span<const uint8_t> bytes, uint32_t to) {
  // The type's place in the layout (docs/formats.md).
  constexpr size_t kType = 5;
  const std::lock_guard lock(mutex_);
  if (cut_.contains(Between(from, to))) return;
  if (filter_ && !filter_(from, to, static_cast<lease::Type>(bytes[kType]))) return;
  const auto found = sockets_.find(to);
  if (found == sockets_.end()) return;
  if (static_cast<lease::Type>(bytes[kType]) == lease::Type::kBeat) last_beat_[from] = now_.load();
  found->second->Put(from, bytes);
}

void BeatNet::SetFilter(Filter filter) {
  const std::lock_guard lock(mutex_);
  filter_ = std::move(filter);
}

// ---- links

DialLink BeatNet::DialFrom(uint32_t node) {
  return links_.DialFrom(HostOf(node));
}

std::shared_ptr<void> BeatNet::Listen(uint32_t node, AcceptLink accept) {
  UniqueFd port(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(port.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr_in address = AddressOf(node, port_);
  EXPECT_EQ(::bind(port.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << std::strerror(errno);
  EXPECT_EQ(::listen(port.get(), SOMAXCONN), 0);
  return std::make_shared<Listener>(
      Listener{std::move(port), links_.Listen(HostOf(node), std::move(accept))});
}

void BeatNet::Cut(uint32_t a, uint32_t b) {
  {
    const std::lock_guard lock(mutex_);
    if (!cut_.insert(Between(a, b)).second) return;
  }
  HoldLinks(a, b);
}

void BeatNet::Mend(uint32_t a, uint32_t b) {
  {
    const std::lock_guard lock(mutex_);
    if (cut_.erase(Between(a, b)) == 0) return;
  }
  ReleaseLinks(a, b);
}

void BeatNet::HoldLinks(uint32_t a, uint32_t b) {
  links_.Hold(HostOf(a), HostOf(b));
}

void BeatNet::ReleaseLinks(uint32_t a, uint32_t b) {
  links_.Release(HostOf(a), HostOf(b));
}

bool BeatNet::SayToAgent(uint32_t coordinator, uint32_t node, std::string payload) {
  return links_.SayFor(HostOf(coordinator), HostOf(node), std::move(payload));
}

}  // namespace muster
