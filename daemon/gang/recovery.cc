// What a coordinator finds that takes over, and what a node brings that comes back.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/planted.h"
#include "daemon/gang/gang.h"

namespace muster::gang {
namespace {

const char* Word(MemberState state) {
  switch (state) {
    case MemberState::kWaiting:
      return "waits";
    case MemberState::kRunning:
      return "runs";
    case MemberState::kExited:
      return "has ended";
    case MemberState::kStopped:
      return "is stopped";
  }
  return "?";
}

}  // namespace

// A node of this generation is back while it starts, runs or is stopped: what happened there meanwhile is made
// up for.
void Gang::Reconcile(const NodeJoined& event, Actions& out) {
  Node& node = nodes_[event.node];
  // Before the members' exits are looked at: a member that could not read its checkpoint has exited because of that.
  if (event.checkpoint_bad) On(*event.checkpoint_bad, out);
  bool stopped = true;
  uint32_t unkillable = 0;
  uint64_t newest = generation_;  // the coordinator before may have begun another one there
  for (const MemberInfo& info : event.members) {
    if (info.task >= members_.size()) continue;
    newest = std::max(newest, info.generation);
    stopped &= info.state == MemberState::kStopped || info.state == MemberState::kWaiting;
    if (info.exit && info.exit->supervisor_lost) {
      ExitSeen(info.task, *info.exit, out);  // of whatever generation: it cannot run the next one either
      continue;
    }
    if (info.generation != generation_) continue;
    if (info.state == MemberState::kStopped) unkillable += info.unkillable;
    if (info.state == MemberState::kRunning) {
      members_[info.task].executed = true;
    } else if (info.state != MemberState::kWaiting && (info.exit || state_ != State::kStopping)) {
      ExitSeen(info.task, info.exit.value_or(Exit{.status = SIGKILL, .cause = CauseClass::kInfrastructure}),
               out);
    }
  }
  if (state_ == State::kStarting || state_ == State::kRunning) {
    StartAgain(event.node, out);
    if (state_ == State::kStarting) {
      StartReady(out);  // other roles may have waited for what it says
      MaybeRunning(out);
    }
    if (state_ == State::kRunning) MaybeGrow(out);
  } else if (state_ == State::kStopping) {
    node.stopped = stopped;
    if (unkillable > 0) Unkillable(event.node, unkillable, out);
    if (stopped) {
      WhenStopped(out);
    } else {
      out.emplace_back(StopGeneration{newest, {event.node}, false, LastWords()});
    }
  }
}

// A node that is not of this generation: a spare, or one that was lost and has healed. Nothing may run there.
void Gang::ReconcileOther(const NodeJoined& event, Actions& out) {
  Node& node = nodes_[event.node];
  node.stopped = true;
  for (const MemberInfo& info : event.members) {
    if (info.task >= members_.size()) continue;
    if (info.exit && info.exit->supervisor_lost) ExitSeen(info.task, *info.exit, out);
    if (info.state == MemberState::kRunning || info.state == MemberState::kExited) {
      node.stopped = false;
    } else if (info.state == MemberState::kStopped && info.unkillable > 0) {
      Unkillable(event.node, info.unkillable, out);
    }
  }
  if (!node.stopped) {
    out.emplace_back(StopGeneration{generation_, {event.node}, !MUSTER_PLANTED(older_stops_all)});
    return;
  }
  if (state_ == State::kTesting) return;
  if (state_ == State::kStopping) return WhenStopped(out);
  StartAgain(event.node, out);
  MaybeGrow(out);
}

// While joining or recovering: everybody is here who will be, each with its members' states: from nothing at
// all to a generation half stopped.
void Gang::AllAreHere(Actions& out) {
  out.emplace_back(SetTimer{Timer::kJoin, -1});
  const bool fresh = std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.state == MemberState::kWaiting || (m.generation == 0 && m.exit && m.exit->supervisor_lost);
  });
  if (!fresh) return Recover(out);
  for (Node& node : nodes_) node.stopped = true;
  const Placement placement = Place(Free::kNow);
  if (!placement.why_not.empty()) {
    return GiveUp(placement.why_not, out);
  }
  const auto here = std::count_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.present; });
  const std::string waiting =
      placement.active.size() < static_cast<size_t>(here)
          ? fmt::format("; {} of them wait as spares", static_cast<size_t>(here) - placement.active.size())
          : "";
  out.emplace_back(
      Note{"joined", fmt::format("{}{} nodes are here{}",
                                 static_cast<size_t>(here) == nodes_.size() ? "all " : "", here, waiting)});
  TestOrStart(placement, out);
}

void Gang::On(const Leads& /*event*/, Actions& out) {
  leads_ = true;
  LimitRecovering(out);
}

// Starts the timer that ends the wait for missing nodes, when this coordinator can hear nodes. It starts once: a term that is raised
// while the gang recovers does not make the wait longer.
void Gang::LimitRecovering(Actions& out) {
  if (state_ != State::kRecovering || !leads_ || std::exchange(recovering_limited_, true)) return;
  out.emplace_back(SetTimer{Timer::kRecover, settings_.stranded_after_ms});
}

// The nodes that are here are too few for the leases to tell whether the missing nodes are dead (daemon/lease), as after a rack has
// died with the coordinator and most of the witnesses. A new run of the job does not depend on the missing nodes.
void Gang::Stranded(Actions& out) {
  if (state_ != State::kRecovering) return;
  // Slurm is being asked why it ends the job; its answer decides whether the job may be requeued.
  if (undecided_) {
    out.emplace_back(SetTimer{Timer::kRecover, settings_.stranded_after_ms});
    return;
  }
  if (next_ == Next::kSucceed) {
    state_ = State::kRunning;
    return Stop(out);
  }
  const std::string why = fmt::format(
      "{} s after the coordinator took over these are not here, and the others are too few to tell whether "
      "they are dead: {}",
      settings_.stranded_after_ms / 1000, Missing());
  if (!CanRequeue()) return GiveUp(why, out);
  out.emplace_back(StopGeneration{generation_, PresentNodes()});
  out.emplace_back(ReportToJob{
      Speaker({}), fmt::format("muster: gang {}: {}\nmuster:   the job is requeued\n", settings_.id, why)});
  Requeue(why, out);
}

// The record may name a generation that nobody was told of, while the members run the one that PlaceAgain has begun on the nodes before.
// If a node that is not among these runs something newer than the generation that the active nodes were placed for, that generation was
// begun, and restarted.
void Gang::FindPlacedAgain() {
  const std::vector<uint32_t> before = std::exchange(before_, {});
  const auto begun = [&](uint32_t node) {
    return std::find(before.begin(), before.end(), node) == before.end() &&
           std::any_of(nodes_[node].tasks.begin(), nodes_[node].tasks.end(),
                       [this](uint32_t task) { return members_[task].generation > placed_; });
  };
  if (generation_ > placed_ && !before.empty() && std::none_of(active_.begin(), active_.end(), begun))
    active_ = before;
}

void Gang::Recover(Actions& out) {
  FindPlacedAgain();
  // A record from before the first generation, or of the first version: the first nodes of each role are it.
  const bool known = !active_.empty();
  for (uint32_t role = 0; role < settings_.roles.size() && !known; ++role) {
    uint32_t count = 0;
    for (uint32_t node = 0; node < nodes_.size() && count < FullSize(role); ++node) {
      if (RoleIndex(node) != role) continue;
      active_.push_back(node);
      ++count;
    }
  }
  AssignRanks();
  const std::vector<uint32_t> strangers = FindWhatRuns();
  state_ = State::kRunning;
  if (next_ == Next::kSucceed) return Stop(out);  // that was decided, and most of it may be done
  if (!strangers.empty()) out.emplace_back(StopGeneration{generation_, strangers, true});
  // What the members have saved is committed under this generation's record.
  if (!MUSTER_PLANTED(commit_under_old_record)) out.emplace_back(Persist{});
  if (bad_ && bad_->generation == generation_) On(*bad_, out);
  if (state_ != State::kRunning) return;
  if (std::optional<Fault> fault = FaultMeanwhile()) return Fail(*std::move(fault), out);
  out.emplace_back(
      Note{"recovered", fmt::format("the coordinator took over; generation {} runs on", generation_)});
  // The agents learn the new term. A node whose part waits for another role, or that Slurm's SIGTERM has overtaken, would begin it.
  std::vector<uint32_t> nodes = PresentNodes();
  std::erase_if(nodes, [this](uint32_t node) { return IsActive(node) && !nodes_[node].started; });
  out.emplace_back(StartGeneration{generation_, std::move(nodes), false});
  for (const uint32_t i : active_) {
    if (!nodes_[i].started) state_ = State::kStarting;  // its role waits for another
  }
  if (state_ == State::kRunning) {
    out.emplace_back(SetTimer{Timer::kProgress, settings_.progress_after_ms});
    AskForCheckpoint(out);
    MaybeGrow(out);
  } else {
    StartReady(out);
  }
  MaybeAllExited(out);
}

// Which nodes must be stopped before the next generation; gives those that run something though they are not of
// this one: they were lost, and have healed.
std::vector<uint32_t> Gang::FindWhatRuns() {
  std::vector<uint32_t> strangers;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const auto quiet = [&](uint32_t task) {
      return members_[task].state == MemberState::kWaiting || members_[task].state == MemberState::kStopped;
    };
    const auto waits = [&](uint32_t task) {
      return members_[task].state == MemberState::kWaiting && members_[task].generation < generation_;
    };
    Node& node = nodes_[i];
    const bool all_wait = std::all_of(node.tasks.begin(), node.tasks.end(), waits);
    const bool all_quiet = std::all_of(node.tasks.begin(), node.tasks.end(), quiet);
    node.started = IsActive(i) && !(RoleOf(i).after && all_wait);
    // What the coordinator before this one ordered may still be on its way: the nodes of the generation are asked.
    node.stopped = node.lost || (!IsActive(i) && all_quiet);
    if (!IsActive(i) && node.present && !all_quiet) strangers.push_back(i);
  }
  return strangers;
}

// Why the generation cannot run on, if so.
std::optional<Fault> Gang::FaultMeanwhile() const {
  const auto failed = [](const Member& m) { return m.exit && m.exit->status != 0; };
  const bool ends = terminating_ || Warned();  // members may end in any way
  std::optional<uint32_t> idle;                // the first that does not run this generation
  std::optional<uint32_t> cause;
  for (uint32_t task = 0; task < members_.size(); ++task) {
    const Member& m = members_[task];
    if (!m.rank) continue;
    if (m.exit && m.exit->supervisor_lost && !ends) return MemberFault(task, *m.exit);
    if (!nodes_[m.node].started) continue;  // its role waits for another
    // A member of an older generation than the newest one seen does not run what the gang runs.
    const bool current = m.generation == generation_;
    const bool may_fail = ends || RoleOf(m.node).kind == RoleKind::kSidecar;
    const bool done = m.state == MemberState::kExited && (may_fail || !failed(m));
    if (!idle && !(current && (done || m.state == MemberState::kRunning))) idle = task;
    // The earliest failure; a stopped member without a time was killed because of another's.
    if (!current || may_fail || !failed(m)) continue;
    if (m.state == MemberState::kExited && !cause) cause = task;
    const int64_t time = m.exit->time_ns;
    if (time > 0 && (!cause || members_[*cause].exit->time_ns == 0 || time < members_[*cause].exit->time_ns))
      cause = task;
  }
  if (cause) return MemberFault(*cause, *members_[*cause].exit);
  Fault fault{.cause = CauseClass::kInfrastructure};
  for (const uint32_t i : active_) {
    if (nodes_[i].lost || !nodes_[i].present) {
      fault.what = WhyUnusable(i) + ": dead or cut off";
    } else if (!nodes_[i].excluded.empty()) {
      fault.what = WhyUnusable(i);
    }
  }
  if (!idle && fault.what.empty()) return std::nullopt;
  if (fault.what.empty()) {
    const Member& m = members_[*idle];
    fault.what =
        fmt::format("the coordinator was lost while the generation changed: rank {} on {} {} (generation {})",
                    *m.rank, nodes_[m.node].name, Word(m.state), m.generation);
  }
  return fault;
}

}  // namespace muster::gang
