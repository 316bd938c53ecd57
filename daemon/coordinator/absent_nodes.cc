// Who is missing while a gang joins: a node that Slurm takes to be alive may be dead.
#include <chrono>
#include <utility>

#include "daemon/beat/probe.h"
#include "daemon/coordinator/coordinator.h"

namespace muster {
namespace {

constexpr auto kAnswer = std::chrono::milliseconds(1000);
constexpr auto kEvery = std::chrono::milliseconds(500);
constexpr uint32_t kSilentRounds = 3;  // a packet may be lost
constexpr size_t kMost = 256;          // when more are missing they have just not come yet

}  // namespace

void Coordinator::ProbeAbsent() {
  loop_.Cancel(std::exchange(absent_timer_, 0));
  if (!core_.active() || core_.gang().state() != gang::State::kJoining) return;
  std::vector<uint32_t> nodes;
  std::vector<BeatAddress> addresses;
  for (uint32_t node = 0; node < core_.gang().nodes().size() && node < addresses_.size(); ++node) {
    const gang::Gang::Node& n = core_.gang().nodes()[node];
    if (n.joined || n.lost) continue;
    nodes.push_back(node);
    addresses.push_back(addresses_[node]);
  }
  if (nodes.empty()) return;
  if (nodes.size() > kMost) return ProbeAbsentLater();
  if (!prober_) prober_ = std::make_unique<Worker>();
  prober_->Do(
      [weak = weak_from_this(), nodes = std::move(nodes), addresses = std::move(addresses), &loop = loop_] {
        std::map<uint32_t, Port> ports;
        const std::vector<Port> found = ProbePorts(addresses, kAnswer);
        for (size_t i = 0; i < nodes.size(); ++i) ports[nodes[i]] = found[i];
        loop.Post([weak, ports = std::move(ports)] {
          if (const auto self = weak.lock()) self->AbsentProbed(ports);
        });
      });
}

// Says what is certain when it is of all of them: each has answered now, or has been silent often enough.
void Coordinator::AbsentProbed(const std::map<uint32_t, Port>& ports) {
  if (core_.lost() || core_.gang().state() != gang::State::kJoining) return;
  gang::AbsentProbed probed;
  bool certain = true;
  for (const auto& [node, port] : ports) {
    if (core_.gang().nodes()[node].joined) continue;
    uint32_t& rounds = silent_rounds_[node];
    rounds = port == Port::kSilent ? rounds + 1 : 0;
    if (rounds >= kSilentRounds) {
      probed.dead.push_back(node);
    } else if (rounds > 0 || port == Port::kUnknown) {
      certain = false;
    }
  }
  if (certain) core_.Feed(probed);
  ProbeAbsentLater();
}

void Coordinator::ProbeAbsentLater() {
  loop_.Cancel(absent_timer_);
  absent_timer_ = loop_.After(kEvery, [this] {
    absent_timer_ = 0;
    ProbeAbsent();
  });
}

}  // namespace muster
