#include "tests/unit/daemon/beat_net.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "daemon/beat/key.h"

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

// End 0 has dialled, end 1 has been dialled.
struct BeatNet::Pair {
  struct Word {
    std::string payload;
    bool end = false;  // the last one: the other end has closed
  };
  std::array<uint32_t, 2> nodes{};
  std::array<std::shared_ptr<End>, 2> ends;
  std::array<LinkEvents, 2> events;
  std::array<bool, 2> over{};              // has been told that it is closed
  std::array<bool, 2> closed{};            // sends nothing more
  std::array<std::deque<Word>, 2> on_way;  // by sender
  bool connected = false;
  std::string key = MakeBeatKey();
};

class BeatNet::End final : public Link {
 public:
  End(BeatNet& net, const std::shared_ptr<Pair>& pair, size_t side)
      : net_(net), pair_(pair), side_(side), key_(pair->key) {}
  void Send(std::string payload) override {
    if (const auto pair = pair_.lock()) net_.Send(*pair, side_, std::move(payload));
  }
  void Close(const std::string& why) override {
    if (const auto pair = pair_.lock()) net_.Close(*pair, side_, why, false);
  }
  void CloseWhenSent(const std::string& why) override {
    if (const auto pair = pair_.lock()) net_.Close(*pair, side_, why, true);
  }
  [[nodiscard]] std::string key() const override { return key_; }

 private:
  BeatNet& net_;
  const std::weak_ptr<Pair> pair_;
  const size_t side_;
  const std::string key_;
};

BeatNet::~BeatNet() = default;

std::string BeatNet::HostOf(uint32_t node) {
  return fmt::format("127.0.0.{}", node + 1);
}

DialLink BeatNet::DialFrom(uint32_t node) {
  return [this, node](const std::string& host, const std::string& /*address*/, LinkEvents events,
                      const RunElsewhere& /*elsewhere*/) -> std::shared_ptr<Link> {
    auto pair = std::make_shared<Pair>();
    in_addr_t address = ::inet_addr(host.c_str());
    pair->nodes = {node, ntohl(address) - INADDR_LOOPBACK};
    pair->events[0] = std::move(events);
    for (const size_t side : {0, 1}) pair->ends[side] = std::make_shared<End>(*this, pair, side);
    std::shared_ptr<Link> mine = pair->ends[0];
    const std::lock_guard lock(mutex_);
    Forget();
    pairs_.push_back(pair);
    Flush(*pair);
    return mine;
  };
}

std::shared_ptr<void> BeatNet::Listen(uint32_t node, Server::Accept accept) {
  auto listener = std::make_shared<Listener>();
  listener->accept = std::move(accept);
  listener->port.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(listener->port.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr_in address = AddressOf(node, port_);
  EXPECT_EQ(::bind(listener->port.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << std::strerror(errno);
  EXPECT_EQ(::listen(listener->port.get(), SOMAXCONN), 0);
  const std::lock_guard lock(mutex_);
  listeners_[node] = listener;
  return {listener.get(), [this, node, keep = listener](void*) mutable {
            const std::lock_guard inner(mutex_);
            listeners_.erase(node);
            keep.reset();
            for (const auto& pair : pairs_) {
              if (pair->nodes[1] != node || !pair->connected) continue;
              pair->events[1] = {};  // its daemon is no more
              pair->over[1] = true;
              pair->ends[1].reset();
              if (!std::exchange(pair->closed[1], true)) pair->on_way[1].push_back({"", true});
              Flush(*pair);
            }
          }};
}

bool BeatNet::Held(const Pair& pair) const {
  const Nodes nodes = Between(pair.nodes[0], pair.nodes[1]);
  return pair.nodes[0] != pair.nodes[1] && (cut_.contains(nodes) || held_.contains(nodes));
}

void BeatNet::Send(Pair& pair, size_t from, std::string payload) {
  const std::lock_guard lock(mutex_);
  if (pair.closed[from]) return;
  pair.on_way[from].push_back({std::move(payload)});
  Flush(pair);
}

void BeatNet::Close(Pair& pair, size_t from, const std::string& why, bool sent_first) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(pair.closed[from], true)) return;
  if (!sent_first) pair.on_way[from].clear();
  pair.on_way[from].push_back({"", true});
  if (!std::exchange(pair.over[from], true) && pair.events[from].closed) pair.events[from].closed(why);
  Flush(pair);
}

void BeatNet::Connect(Pair& pair) {
  const auto listener = listeners_.find(pair.nodes[1]);
  if (pair.closed[0]) {
    pair.closed[1] = pair.over[1] = true;
  } else if (listener == listeners_.end()) {
    pair.closed[0] = pair.closed[1] = pair.over[1] = true;
    if (!std::exchange(pair.over[0], true)) pair.events[0].closed("nobody listens");
  } else {
    pair.connected = true;
    pair.events[1] = listener->second->accept(pair.ends[1]);
  }
}

void BeatNet::Flush(Pair& pair) {
  if (Held(pair)) return;
  if (!pair.connected && !pair.closed[1]) Connect(pair);
  if (!pair.connected) return;
  for (const size_t from : {0, 1}) {
    const size_t to = 1 - from;
    while (!pair.on_way[from].empty()) {
      const Pair::Word word = std::move(pair.on_way[from].front());
      pair.on_way[from].pop_front();
      ++activity_;
      if (pair.over[to]) continue;
      if (!word.end) {
        pair.events[to].message(word.payload);
      } else {
        pair.over[to] = pair.closed[to] = true;
        pair.events[to].closed("the other end has closed");
      }
    }
  }
}

void BeatNet::FlushAll() {
  for (const auto& pair : pairs_) Flush(*pair);
}

// Those that nobody is to be told anything of any more.
void BeatNet::Forget() {
  std::erase_if(pairs_, [](const std::shared_ptr<Pair>& pair) {
    return pair->over[0] && pair->over[1] && pair->on_way[0].empty() && pair->on_way[1].empty();
  });
}

void BeatNet::Cut(uint32_t a, uint32_t b) {
  const std::lock_guard lock(mutex_);
  cut_.insert(Between(a, b));
}

void BeatNet::Mend(uint32_t a, uint32_t b) {
  const std::lock_guard lock(mutex_);
  cut_.erase(Between(a, b));
  FlushAll();
}

void BeatNet::HoldLinks(uint32_t a, uint32_t b) {
  const std::lock_guard lock(mutex_);
  held_.insert(Between(a, b));
}

void BeatNet::ReleaseLinks(uint32_t a, uint32_t b) {
  const std::lock_guard lock(mutex_);
  held_.erase(Between(a, b));
  FlushAll();
}

bool BeatNet::SayToAgent(uint32_t coordinator, uint32_t node, std::string payload) {
  const std::lock_guard lock(mutex_);
  for (auto pair = pairs_.rbegin(); pair != pairs_.rend(); ++pair) {
    Pair& p = **pair;
    if (p.nodes[0] != node || p.nodes[1] != coordinator || !p.connected || p.over[0]) continue;
    p.on_way[1].push_back({std::move(payload)});
    Flush(p);
    return true;
  }
  return false;
}

}  // namespace muster
