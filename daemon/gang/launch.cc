// A node that is dead before its part of the step could be launched: srun gives up, of all the step, with spares or without.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/gang/gang.h"

namespace muster::gang {
namespace {

constexpr int kLaunchObservers = 2;  // nodes that must have joined for another to be called dead

}  // namespace

// Whether nodes have not joined of which nobody knows yet why.
bool Gang::MayBeDead() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const Node& n) { return !n.joined && !n.lost && !n.absent && n.excluded.empty(); });
}

void Gang::On(const AbsentProbed& event, Actions& out) {
  if (state_ != State::kJoining) return;
  const bool ended = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.broken; });
  if (event.dead.empty()) {
    if (ended && !MayStillStart()) GiveUp(fault_ ? fault_->what : "its tasks were ended from outside", out);
    return;
  }
  std::string names;
  for (const uint32_t node : event.dead) {
    if (node >= nodes_.size() || nodes_[node].joined) return;  // it has come meanwhile
    if (names.size() < 400) names += (names.empty() ? "" : ", ") + nodes_[node].name;
  }
  Fault fault{.what = fmt::format("{}: dead or cut off when the step was launched", names),
              .cause = CauseClass::kInfrastructure};
  // Who hears too few of the others may itself be cut off: nobody is called dead then.
  const auto joined = std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.joined; });
  const bool sure = joined >= kLaunchObservers && event.dead.size() * 2 < nodes_.size();
  // Those that live may still come, and confirm it.
  const auto missing =
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.joined && !n.lost; });
  const bool more = static_cast<size_t>(missing) > event.dead.size();
  if (!sure && (more || !ended || MayStillStart())) return;
  if (!sure)
    fault.what += ", and too few others are here to be sure that it is not this node that is cut off";
  fault_ = std::move(fault);
  if (!sure) return GiveUp(fault_->what, out);
  for (const uint32_t node : event.dead) nodes_[node].lost = true;
  launch_failed_ = true;
  next_ = CanRequeue() ? Next::kRequeue : Next::kGiveUp;
  out.emplace_back(SetTimer{Timer::kJoin, -1});
  state_ = State::kStopping;
  for (Node& node : nodes_) node.stopped = true;
  WhenStopped(out);
}

}  // namespace muster::gang
