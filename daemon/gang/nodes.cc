// Which nodes there are.
#include <fmt/format.h>

#include <algorithm>

#include "base/planted.h"
#include "daemon/gang/gang.h"

namespace muster::gang {

void Gang::On(const NodeJoined& event, Actions& out) {
  if (event.node >= nodes_.size()) return;
  Node& node = nodes_[event.node];
  const bool returning = node.joined && !node.present;  // else it registers anew on its link
  const bool was_lost = node.lost;
  if (event.checkpoint_bad && state_ == State::kRecovering) On(*event.checkpoint_bad, out);
  Learn(event);
  LimitRecovering(out);
  switch (state_) {
    case State::kJoining:
    case State::kRecovering:
      return MaybeAllHere(out);
    case State::kRequeueing:
      return;
    case State::kFinished:
      return OrderFinish({event.node}, out);
    default:
      break;
  }
  if (returning || was_lost) {
    out.emplace_back(Note{"node_back", fmt::format("node {} is connected again", node.name)});
  }
  if (state_ == State::kTesting) {
    ReconcileOther(event, out);
    TestSpoiled(event.node, out);
  } else if (IsActive(event.node) && !was_lost) {
    Reconcile(event, out);
  } else {
    ReconcileOther(event, out);
  }
}

void Gang::Learn(const NodeJoined& event) {
  Node& node = nodes_[event.node];
  node.joined = true;
  node.present = true;
  node.lost = node.ended = false;
  node.absent = false;
  node.exiting = 0;
  node.name = event.name;
  node.lease_port = event.lease_port;
  node.links_test = event.links_test;
  node.tasks.clear();
  const bool learning = state_ == State::kJoining || state_ == State::kRecovering;
  for (const MemberInfo& info : event.members) {
    if (info.task >= members_.size()) continue;
    node.tasks.push_back(info.task);
    Member& member = members_[info.task];
    member.node = event.node;
    member.local_id = info.local_id;
    member.known = true;
    // Numbers are not used again: a node that comes late may have run more than the record knew.
    newest_seen_ = std::max(newest_seen_, info.generation);
    if (!learning) continue;
    member.state = info.state;
    member.generation = info.generation;
    member.executed = info.state == MemberState::kRunning;
    member.exit = info.exit;
    node.broken |= info.exit && info.exit->supervisor_lost;
    if (info.state == MemberState::kWaiting || info.generation == 0) continue;
    // The record is written behind: the members may be further than it says.
    state_ = State::kRecovering;
    began_ = inherited_ = true;
    generation_ = std::max(generation_, info.generation);
  }
  std::sort(node.tasks.begin(), node.tasks.end(),
            [&](uint32_t a, uint32_t b) { return members_[a].local_id < members_[b].local_id; });
  node.task_count = static_cast<uint32_t>(node.tasks.size());
}

void Gang::On(const NodeLeft& event, Actions& out) {
  if (event.node >= nodes_.size() || !nodes_[event.node].present) return;
  Node& node = nodes_[event.node];
  node.present = false;
  if (state_ == State::kFinished) return;
  // A spare whose tasks have all ended has nothing left that could run, and will not be back: nobody is to wait for it.
  const auto ended = [&](uint32_t task) {
    return members_[task].exit && members_[task].exit->supervisor_lost;
  };
  // The batch host of a gang that has begun is waited for: the script runs there.
  const bool batch = batch_node_ == event.node;
  if (node.broken && !IsActive(event.node) && (!batch || state_ == State::kJoining) &&
      std::all_of(node.tasks.begin(), node.tasks.end(), ended)) {
    node.ended = true;
    node.lost = !batch;
    if (state_ == State::kJoining && !MayBeDead()) return MaybeAllHere(out);
    if (state_ == State::kTesting) return TestSpoiled(event.node, out);
  }
  if (state_ != State::kJoining && state_ != State::kRecovering && state_ != State::kRequeueing) {
    out.emplace_back(Note{"node_away", fmt::format("node {} is not connected", node.name)});
    out.emplace_back(Persist{});
  }
  if (state_ == State::kStopping && next_ != Next::kRestart) WhenStopped(out);
}

void Gang::On(const NodeSilent& event, Actions& out) {
  if (event.node >= nodes_.size() || state_ == State::kFinished) return;
  Node& node = nodes_[event.node];
  if (node.lost) return;
  node.present = false;
  node.lost = true;
  node.stopped = true;
  node.exiting = 0;
  durable_ |= IsActive(event.node);  // its members' death has been inferred, not seen
  if (state_ == State::kRequeueing) return;
  const std::string text =
      node.joined
          ? fmt::format("node {} is lost: dead or cut off", node.name)
          : fmt::format("node {} is lost: it has not been heard since this coordinator began", node.name);
  out.emplace_back(Note{"node_lost", text});
  out.emplace_back(LoseNode{event.node, text});
  Fault fault{.what = text, .task = node.tasks.empty() ? 0 : node.tasks.front()};
  fault.cause = CauseClass::kInfrastructure;
  fault.exit.time_ns = event.last_heard_ns;
  const uint64_t before = generation_;
  LeaveOut(event.node, fault, out);
  // The record must say soon that the spare is lost: a lost spare that still reaches the store would else take the gang over. If this
  // event has started a generation, nothing is written here: StartNext writes the record when the checkpoint to begin from is chosen.
  if (!IsActive(event.node) && generation_ == before &&
      (state_ == State::kStarting || state_ == State::kRunning))
    out.emplace_back(Persist{});
}

void Gang::On(const NodeSick& event, Actions& out) {
  if (event.node >= nodes_.size() || state_ == State::kFinished) return;
  Node& node = nodes_[event.node];
  if (!node.excluded.empty()) return;
  node.excluded = event.reason;
  const std::string text = fmt::format("node {} is sick: {}", node.name, event.reason);
  out.emplace_back(Note{"node_sick", text});
  out.emplace_back(DrainInSlurm{event.node, event.reason});
  Fault fault{.what = text, .task = node.tasks.empty() ? 0 : node.tasks.front()};
  fault.cause = CauseClass::kInfrastructure;
  LeaveOut(event.node, fault, out);
}

// Nothing may run on this node any more.
void Gang::LeaveOut(uint32_t node, const Fault& fault, Actions& out) {
  switch (state_) {
    case State::kJoining:
    case State::kRecovering:
      return MaybeAllHere(out);
    case State::kTesting:
      return TestSpoiled(node, out);
    case State::kStarting:
    case State::kRunning:
      // With the batch host the job's script and its srun have died, whether members ran there or not.
      if (!IsActive(node) && !(batch_node_ == node && nodes_[node].lost)) return;
      return Fail(fault, out);
    case State::kStopping:
      return WhenStopped(out);
    default:
      return;
  }
}

void Gang::On(const NodeReturned& event, Actions& out) {
  if (event.node >= nodes_.size()) return;
  Node& node = nodes_[event.node];
  if (!std::exchange(node.draining, "").empty()) out.emplace_back(Persist{});
  if (node.excluded.empty()) return;
  node.excluded.clear();
  out.emplace_back(Note{"node_returned", fmt::format("node {} may be used again", node.name)});
  out.emplace_back(Persist{});
  MaybeGrow(out);
}

// While joining or recovering: is there anybody left to wait for?
void Gang::MaybeAllHere(Actions& out) {
  if (AllHere()) AllAreHere(out);
}

bool Gang::AllHere() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) {
    return n.present || n.lost || n.ended || n.absent || (!n.excluded.empty() && !n.joined);
  });
}

// Those that are here, away or still to come may be enough.
bool Gang::MayStillStart() const {
  for (uint32_t role = 0; role < settings_.roles.size(); ++role) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      const Node& n = nodes_[i];
      count += RoleIndex(i) == role && !n.lost && !n.absent && !n.broken && n.excluded.empty() ? 1 : 0;
    }
    if (count < LeastSize(role)) return false;
  }
  return true;
}

void Gang::JoinTimedOut(Actions& out) {
  if (state_ != State::kJoining) return;  // who is missing while recovering is lost when its lease says so
  const std::string missing = Missing();
  for (Node& node : nodes_) node.absent = !node.present && !node.lost;
  const Placement placement = Place(Free::kWhenStopped);
  if (placement.why_not.empty()) {
    out.emplace_back(Note{"absent", fmt::format("after {} s these have not joined: {}; starting without them",
                                                settings_.join_timeout_ms / 1000, missing)});
    return AllAreHere(out);
  }
  GiveUp(fmt::format("after {} s these have not joined: {}", settings_.join_timeout_ms / 1000, missing), out);
}

std::vector<uint32_t> Gang::PresentNodes() const {
  std::vector<uint32_t> present;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].present) present.push_back(i);
  }
  return present;
}

// Nothing of the generation runs any more, as far as it can be known. A gang that is given up does not wait for
// nodes that are away: their supervisors end it there.
bool Gang::AllStopped(bool or_exit) const {
  const bool present_only = next_ == Next::kGiveUp || next_ == Next::kSucceed;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& n) {
    return n.stopped || n.lost || (or_exit && n.exiting > 0) || (present_only && !n.present);
  });
}

// Whether a generation without the nodes whose processes have not gone yet has as many nodes as one that waits for them.
bool Gang::MayLeaveExiting() const {
  if (next_ != Next::kRestart || requeue_for_ || BatchHostLost()) return false;
  if (MUSTER_PLANTED(exiting_not_awaited)) return true;
  // A node that is to be drained is left only if there is room without it, and that is known when all have stopped.
  if (std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.draining.empty(); }))
    return false;
  const Placement placement = Place(Free::kNow);
  return placement.why_not.empty() && placement.active.size() == Place(Free::kWhenExited).active.size();
}

// One whose musterd is just restarting, as it seems, will be back, or silent: worth waiting for.
bool Gang::AnyAway(const std::vector<uint32_t>& nodes) const {
  return std::any_of(nodes.begin(), nodes.end(), [&](uint32_t i) {
    return !nodes_[i].present && !nodes_[i].lost && nodes_[i].excluded.empty() && !nodes_[i].broken;
  });
}

}  // namespace muster::gang
