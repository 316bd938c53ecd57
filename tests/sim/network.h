// Datagrams, which get lost, late, doubled and out of order; links, which are ordered and break, with what was on its
// way; and cuts, which may be one-way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "daemon/lease/datagram.h"
#include "tests/sim/messages.h"
#include "tests/sim/world.h"

namespace muster::sim {

struct Weather {
  double loss = 0;
  double twice = 0;
  double late = 0;  // part of the datagrams that take up to `late_by` longer
  Nanos late_by = 0;
};

class Network;

// From an agent to a coordinator's daemon. Each end has its receiver; a closed end hears nothing.
class Link : public std::enable_shared_from_this<Link> {
 public:
  struct End {
    uint32_t host = 0;
    std::function<void(Message)> message;
    std::function<void()> closed;
    bool open = false;
  };
  Link(Network& network, World& world, uint32_t agent, uint32_t coordinator);

  void Send(size_t from, Message message);
  void Close(size_t from);  // tells the other end
  void Break();             // tells both ends; what is on its way is lost
  End ends[2];              // kAgentEnd, kCoordinatorEnd
  bool accepted = false;

 private:
  void Deliver(size_t to);
  Network& network_;
  World& world_;
  std::deque<Message> on_way_[2];  // to that end
  Nanos last_[2] = {0, 0};
};
inline constexpr size_t kAgentEnd = 0;
inline constexpr size_t kCoordinatorEnd = 1;

class Network {
 public:
  using Receiver = std::function<void(uint32_t to, uint32_t from, const lease::Datagram&)>;
  Network(World& world, size_t hosts, Receiver receiver);

  void SetWeather(const Weather& weather) { weather_ = weather; }
  void Cut(uint32_t from, uint32_t to);
  void Heal();
  [[nodiscard]] bool Joined(uint32_t a, uint32_t b) const { return !cut_[a][b] && !cut_[b][a]; }
  void Post(uint32_t from, uint32_t to, const lease::Datagram& datagram);
  std::shared_ptr<Link> Connect(uint32_t agent, uint32_t coordinator);
  // The host does not answer any more: its links end when that has been noticed, if it is still so.
  void Unresponsive(uint32_t host, const std::function<bool()>& still);
  // A process has ended: its peers hear it, where they can be reached.
  void ProcessEnded(uint32_t host);
  void BreakLinksOf(uint32_t host);

 private:
  void Watch(const std::shared_ptr<Link>& link);

  World& world_;
  Receiver receiver_;
  Weather weather_;
  std::vector<std::vector<bool>> cut_;
  std::vector<std::weak_ptr<Link>> links_;
};

// How long a link lives on without a word from the other side.
inline constexpr Nanos kKeepalive = 2'500 * kMs;

}  // namespace muster::sim
