#include "tests/sim/network.h"

#include <algorithm>
#include <utility>

namespace muster::sim {

// ---- links

Link::Link(Network& network, World& world, uint32_t agent, uint32_t coordinator)
    : network_(network), world_(world) {
  ends[kAgentEnd].host = agent;
  ends[kCoordinatorEnd].host = coordinator;
}

void Link::Send(size_t from, Message message) {
  const size_t to = 1 - from;
  if (!ends[from].open) return;
  on_way_[to].push_back(std::move(message));
  const Nanos at = std::max(last_[to], world_.now() + world_.Pick(100'000, 2 * kMs));
  last_[to] = at;
  world_.After(at - world_.now(), [self = shared_from_this(), to] { self->Deliver(to); });
}

void Link::Deliver(size_t to) {
  if (on_way_[to].empty() || !(ends[to].open || (!accepted && ends[1 - to].open))) return;
  if (!accepted ||
      !network_.Joined(ends[0].host, ends[1].host)) {  // sent again until it arrives or the link is given up
    world_.After(20 * kMs, [self = shared_from_this(), to] { self->Deliver(to); });
    return;
  }
  while (!on_way_[to].empty() && ends[to].open) {
    Message message = std::move(on_way_[to].front());
    on_way_[to].pop_front();
    const auto receive = ends[to].message;
    receive(std::move(message));
    if (last_[to] > world_.now()) break;
  }
}

void Link::Close(size_t from) {
  if (!std::exchange(ends[from].open, false)) return;
  ends[from].message = nullptr;
  ends[from].closed = nullptr;
  // Behind what has been sent.
  const size_t to = 1 - from;
  const Nanos at = std::max(last_[to], world_.now() + world_.Pick(100'000, 2 * kMs));
  const auto tell = [self = shared_from_this(), to] {
    Link::End& end = self->ends[to];
    if (!end.open || !self->network_.Joined(self->ends[0].host, self->ends[1].host)) return;
    end.open = false;
    const auto closed = std::exchange(end.closed, nullptr);
    closed();
  };
  world_.After(at - world_.now() + 1, tell);
  world_.After(kKeepalive, [self = shared_from_this()] { self->Break(); });
}

void Link::Break() {
  for (End& end : ends) {
    on_way_[0].clear();
    on_way_[1].clear();
    if (!std::exchange(end.open, false)) continue;
    const auto closed = std::exchange(end.closed, nullptr);
    closed();
  }
}

// ---- the network

Network::Network(World& world, size_t hosts, Receiver receiver)
    : world_(world), receiver_(std::move(receiver)), cut_(hosts, std::vector<bool>(hosts)) {}

void Network::Post(uint32_t from, uint32_t to, const lease::Datagram& datagram) {
  if (to >= cut_.size()) return;
  if (from == to) {
    world_.After(10'000, [this, to, datagram] { receiver_(to, to, datagram); });
    return;
  }
  if (cut_[from][to] || (weather_.loss > 0 && world_.Chance(weather_.loss))) return;
  const int copies = weather_.twice > 0 && world_.Chance(weather_.twice) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    Nanos delay = world_.Pick(50'000, 2 * kMs);
    if (weather_.late > 0 && world_.Chance(weather_.late)) delay += world_.Pick(0, weather_.late_by);
    world_.After(delay, [this, from, to, datagram] { receiver_(to, from, datagram); });
  }
}

std::shared_ptr<Link> Network::Connect(uint32_t agent, uint32_t coordinator) {
  auto link = std::make_shared<Link>(*this, world_, agent, coordinator);
  std::erase_if(links_, [](const auto& weak) { return weak.expired(); });
  links_.push_back(link);
  if (!Joined(agent, coordinator)) Watch(link);
  return link;
}

void Network::Watch(const std::shared_ptr<Link>& link) {
  world_.After(kKeepalive, [this, weak = std::weak_ptr(link)] {
    const auto kept = weak.lock();
    if (kept && !Joined(kept->ends[0].host, kept->ends[1].host)) kept->Break();
  });
}

void Network::Cut(uint32_t from, uint32_t to) {
  cut_[from][to] = true;
  for (const auto& weak : links_) {
    const auto link = weak.lock();
    if (link && !Joined(link->ends[0].host, link->ends[1].host)) Watch(link);
  }
}

void Network::Heal() {
  for (auto& row : cut_) row.assign(row.size(), false);
  weather_ = {};
}

void Network::Unresponsive(uint32_t host, const std::function<bool()>& still) {
  world_.After(kKeepalive, [this, host, still] {
    if (still()) BreakLinksOf(host);
  });
}

void Network::BreakLinksOf(uint32_t host) {
  const auto links = links_;
  for (const auto& weak : links) {
    const auto link = weak.lock();
    if (link && (link->ends[0].host == host || link->ends[1].host == host)) link->Break();
  }
}

void Network::ProcessEnded(uint32_t host) {
  const auto links = links_;
  for (const auto& weak : links) {
    const auto link = weak.lock();
    if (!link) continue;
    for (size_t end = 0; end < 2; ++end) {
      if (link->ends[end].host == host) link->Close(end);
    }
  }
}

}  // namespace muster::sim
