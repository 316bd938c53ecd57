// What is between the daemons of a test: their time, their beats' datagrams and their links. Time stands still until the
// test moves it, so that no lease ends because the machine is slow; and what is cut, dropped or held is so at once.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/beat/beat_clock.h"
#include "daemon/beat/beat_socket.h"
#include "daemon/lease/datagram.h"
#include "tests/unit/daemon/link_net.h"

namespace muster {

// Thread-safe. Node i is the host 127.0.0.(i+1). Lives longer than all daemons on it.
class BeatNet {
 public:
  explicit BeatNet(uint16_t port) : port_(port) {}
  ~BeatNet() = default;
  BeatNet(const BeatNet&) = delete;
  BeatNet& operator=(const BeatNet&) = delete;

  static constexpr uint32_t kNodes = 3;
  static std::string HostOf(uint32_t node);

  // ---- for one life of a node's daemon
  std::shared_ptr<BeatClock> NewClock();
  std::shared_ptr<BeatSocket> NewSocket(uint32_t node);
  // Opens links from this node.
  DialLink DialFrom(uint32_t node);
  // Links to this node are accepted until what is returned is destroyed; then they end. Its TCP port accepts meanwhile, too,
  // as far as the kernel goes.
  std::shared_ptr<void> Listen(uint32_t node, AcceptLink accept);

  // ---- for the test
  [[nodiscard]] lease::Nanos now() const { return now_; }
  void Move(lease::Nanos time);
  // Whether no beats' thread has anything to do at this time.
  [[nodiscard]] bool Idle();
  // Grows with all that any of them does, and with all that goes over links.
  [[nodiscard]] uint64_t activity() const { return activity_ + links_.activity(); }

  // When the newest beat of a node has come to another one.
  [[nodiscard]] lease::Nanos last_beat(uint32_t node) const { return last_beat_[node]; }

  // Nothing passes between two nodes: datagrams are lost, and what links are to carry waits until the cut is mended, also
  // that an end has closed.
  void Cut(uint32_t a, uint32_t b);
  void Mend(uint32_t a, uint32_t b);
  // Of links alone: what they are to carry waits, and datagrams pass.
  void HoldLinks(uint32_t a, uint32_t b);
  void ReleaseLinks(uint32_t a, uint32_t b);
  // Which datagrams pass; empty: all. Not asked about those of cut nodes.
  using Filter = std::function<bool(uint32_t from, uint32_t to, lease::Type type)>;
  void SetFilter(Filter filter);
  // Says something to a node's agent in its coordinator's place, on the newest link that it has to `coordinator`. False:
  // there is none.
  bool SayToAgent(uint32_t coordinator, uint32_t node, std::string payload);

 private:
  class Clock;
  class Socket;
  using Nodes = std::pair<uint32_t, uint32_t>;
  static Nodes Between(uint32_t a, uint32_t b) { return {std::min(a, b), std::max(a, b)}; }
  struct Listener {
    UniqueFd port;
    std::shared_ptr<void> links;
  };

  void Datagram(uint32_t from, std::span<const uint8_t> bytes, uint32_t to);

  const uint16_t port_;
  std::atomic<lease::Nanos> now_{1'000'000 * lease::kMillisecond};
  std::atomic<uint64_t> activity_{0};
  std::array<std::atomic<lease::Nanos>, kNodes> last_beat_{};

  LinkNet links_;
  std::mutex mutex_;
  std::set<Nodes> cut_;
  Filter filter_;
  std::map<uint32_t, Socket*> sockets_;

  std::mutex clocks_mutex_;
  std::set<Clock*> clocks_;
};

}  // namespace muster
