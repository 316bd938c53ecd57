#include "net/preflight/conductor.h"

#include <poll.h>

#include <algorithm>

namespace muster::preflight {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kOrderSent{5'000};

}  // namespace

bool Conductor::Takes(const Leg& leg) const {
  const auto has = [&](uint32_t node) {
    return !nodes_[node].gone && leg.rail < nodes_[node].rails.size() && nodes_[node].rails[leg.rail].Here();
  };
  return has(leg.from) && has(leg.to);
}

// Whether both ends can measure it with RDMA.
bool Conductor::Verbs(const Leg& leg) const {
  return nodes_[leg.from].rails[leg.rail].verbs && nodes_[leg.to].rails[leg.rail].verbs;
}

// What the slower one of both links carries; 0: nobody knows.
int64_t Conductor::Rate(const Leg& leg) const {
  const auto [less, more] =
      std::minmax(nodes_[leg.from].rails[leg.rail].rate_mbit_s, nodes_[leg.to].rails[leg.rail].rate_mbit_s);
  return less > 0 ? less : more;
}

void Conductor::Order(const Leg& leg, uint64_t id, milliseconds duration, bool sends) {
  Node& node = nodes_[sends ? leg.from : leg.to];
  const RailOf& peer = nodes_[sends ? leg.to : leg.from].rails[leg.rail];
  json order{{"id", id},
             {"ms", duration.count()},
             {"rate", Rate(leg)},
             {"verbs", Verbs(leg)},
             {"address", peer.address},
             {"port", peer.port}};
  if (!node.stream->Send({{sends ? "send" : "receive", order}, {"rail", node.rails[leg.rail].own}},
                         Clock::now() + kOrderSent))
    node.gone = true;
}

void Conductor::Hear(Node& node, std::map<uint64_t, Open>& open) {
  const auto message = node.stream->Receive(Clock::now() + kOrderSent);
  if (!message) {
    node.gone = true;
    return;
  }
  try {
    const auto found = open.find(message->at("id").get<uint64_t>());
    if (found == open.end()) return;  // of a phase whose time was over
    Measured& measured = found->second.leg.measured;
    std::string error;
    if (message->contains("sent")) {
      const json& sent = message->at("sent");
      measured.packets = sent.at("packets").get<uint64_t>();
      measured.lost = sent.at("lost").get<uint64_t>();
      measured.connected = sent.at("connected").get<bool>();
      measured.other_out = sent.at("other_mbit_s").get<double>();
      measured.latency_us = sent.at("latency_us").get<double>();
      if (measured.verbs) measured.mbit_s = sent.at("mbit_s").get<double>();
      error = sent.at("error").get<std::string>();
      found->second.sent = true;
    } else {
      const json& received = message->at("received");
      if (!measured.verbs) measured.mbit_s = received.at("mbit_s").get<double>();
      measured.other_in = received.at("other_mbit_s").get<double>();
      measured.small_heard = received.at("small").get<uint32_t>();
      measured.large_heard = received.at("large").get<uint32_t>();
      error = received.at("error").get<std::string>();
      found->second.received = true;
    }
    if (measured.error.empty()) measured.error = error;
  } catch (const json::exception&) {
    node.gone = true;
  }
}

bool Conductor::Done(const std::map<uint64_t, Open>& open) const {
  return std::ranges::all_of(open, [&](const auto& one) {
    const Leg& leg = one.second.leg.leg;
    return (one.second.sent || nodes_[leg.from].gone) && (one.second.received || nodes_[leg.to].gone);
  });
}

std::vector<MeasuredLeg> Conductor::Measure(const std::vector<Leg>& legs, milliseconds duration) {
  std::map<uint64_t, Open> open;
  for (const Leg& leg : legs) {
    if (!Takes(leg)) continue;
    Measured measured;
    measured.from = leg.from;
    measured.to = leg.to;
    measured.verbs = Verbs(leg);
    open[next_id_++] = {{leg, measured}};
  }
  for (const bool sends : {false, true}) {
    for (const auto& [id, one] : open) Order(one.leg.leg, id, duration, sends);
  }
  const auto until = Clock::now() + duration + late_;
  while (!Done(open) && Clock::now() < until) {
    std::vector<pollfd> entries;
    std::vector<Node*> of;
    for (Node& node : nodes_) {
      if (node.gone) continue;
      entries.push_back({node.stream->fd(), POLLIN, 0});
      of.push_back(&node);
    }
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    if (::poll(entries.data(), entries.size(), static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0)
      continue;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      // A node that measures on several rails may have said several things.
      do {
        Hear(*of[i], open);
      } while (!of[i]->gone && of[i]->stream->HasMessage());
    }
  }
  std::vector<MeasuredLeg> measured;
  for (auto& [id, one] : open) {
    const Leg leg = one.leg.leg;
    // What a node that has ended meanwhile did not say is no fault of its links.
    if (one.sent && one.received) measured.push_back(std::move(one.leg));
    if (!one.sent) nodes_[leg.from].gone = true;
    if (!one.received) nodes_[leg.to].gone = true;
  }
  return measured;
}

}  // namespace muster::preflight
