// What became of the members.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "daemon/gang/gang.h"

namespace muster::gang {
namespace {

// A person's Ctrl-C in srun (or scancel --signal=INT), to which the program has given way: no fault to heal.
bool Interrupted(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGINT : WEXITSTATUS(status) == 128 + SIGINT;
}

}  // namespace

void Gang::On(const MemberExecuted& event, Actions& out) {
  if (event.task >= members_.size() || event.generation != generation_) return;
  Member& member = members_[event.task];
  if (!member.rank || member.state == MemberState::kWaiting) return;
  member.executed = true;
  last_exec_ns_ = std::max(last_exec_ns_, event.time_ns);
  if (state_ != State::kStarting) return;
  StartReady(out);
  MaybeRunning(out);
}

void Gang::MaybeRunning(Actions& out) {
  const bool all = std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return !m.rank || m.executed || m.state == MemberState::kExited;
  });
  if (!all) return;
  state_ = State::kRunning;
  durable_ = false;
  std::string text = fmt::format("generation {} runs", generation_);
  if (fault_time_ns_ > 0 && last_exec_ns_ > fault_time_ns_) {
    recovery_ns_ = last_exec_ns_ - fault_time_ns_;
    text += fmt::format(", {:.1f} ms after the fault", static_cast<double>(recovery_ns_) / 1e6);
    const std::string from = origin_.empty() ? "" : ", " + origin_;
    out.emplace_back(
        ReportToJob{Speaker({}), fmt::format("muster: gang {}: {}{}\n", settings_.id, text, from)});
  }
  out.emplace_back(Note{"running", text});
  out.emplace_back(Persist{});
  out.emplace_back(SetTimer{Timer::kProgress, settings_.progress_after_ms});
  AskForCheckpoint(out);
  MaybeGrow(out);
  MaybeAllExited(out);
}

void Gang::On(const MemberExited& event, Actions& out) {
  if (event.task >= members_.size() || state_ == State::kFinished) return;
  if (event.exit.supervisor_lost || event.generation == generation_) ExitSeen(event.task, event.exit, out);
}

void Gang::ExitSeen(uint32_t task, const Exit& exit, Actions& out) {
  Member& member = members_[task];
  if (exit.supervisor_lost) return SupervisorLost(task, exit, out);
  // Ranks are known when all are here.
  if ((!member.rank && state_ != State::kRecovering) || member.state == MemberState::kExited) return;
  member.state = MemberState::kExited;
  member.exit = exit;
  const RoleKind kind = RoleOf(member.node).kind;
  // A gang that ends does not wait for nodes that are away.
  if (MeansStop(member) &&
      (state_ == State::kStarting || state_ == State::kRunning || state_ == State::kStopping) &&
      (next_ == Next::kRestart || next_ == Next::kRequeue) && !terminating_ && !Warned()) {
    next_ = Next::kGiveUp;
    if (state_ == State::kStopping) return WhenStopped(out);
  }
  switch (state_) {
    case State::kStarting:
    case State::kRunning:
      if (terminating_ || Warned()) return MaybeAllExited(out);
      if (Interrupted(exit.status)) {
        fault_ = MemberFault(task, exit);
        return GiveUp(fault_->what, out);
      }
      if (exit.status != 0 && kind == RoleKind::kSidecar) {
        out.emplace_back(Note{"sidecar", MemberFault(task, exit).what + "; a sidecar's end changes nothing"});
      } else if (exit.status != 0) {
        return Fail(MemberFault(task, exit), out);
      }
      if (state_ == State::kStarting) {
        StartReady(out);
        MaybeRunning(out);  // it may have ended before its exec was seen
      }
      return MaybeAllExited(out);
    case State::kStopping:
      // Exits seen while stopping are mostly Muster's own SIGKILL. One that came before the first cause is
      // the cause.
      if (exit.status != 0 && kind != RoleKind::kSidecar && fault_ && fault_->from_member &&
          exit.time_ns > 0 && exit.time_ns < fault_->exit.time_ns) {
        fault_ = MemberFault(task, exit);
        fault_time_ns_ = exit.time_ns;
        Recharge();
      }
      return;
    default:
      return;  // recovering: decided when all nodes are here
  }
}

// The task cannot run again in this step, so its node cannot take part any more.
void Gang::SupervisorLost(uint32_t task, const Exit& exit, Actions& out) {
  Member& member = members_[task];
  if (member.exit && member.exit->supervisor_lost) return;
  member.state = MemberState::kExited;
  member.exit = exit;
  nodes_[member.node].broken = true;
  switch (state_) {
    case State::kJoining:
      if (MayStillStart()) return;
      if (!fault_) fault_ = MemberFault(task, exit);
      if (MayBeDead()) return;  // then srun could not launch the step there, and has ended the rest
      return GiveUp(fault_->what, out);
    case State::kTesting:
      if (!MayStillStart()) {
        fault_ = MemberFault(task, exit);
        return GiveUp(fault_->what, out);
      }
      return TestSpoiled(member.node, out);
    case State::kStarting:
    case State::kRunning:
      if (terminating_ || Warned()) return MaybeAllExited(out);
      if (IsActive(member.node)) {
        if (!MayStillStart()) next_ = Next::kGiveUp;
        return Fail(MemberFault(task, exit), out);
      }
      out.emplace_back(Note{"spare_lost", MemberFault(task, exit).what});
      return;
    case State::kStopping:
      if (next_ == Next::kRestart && !Warned() && !MayStillStart()) next_ = Next::kGiveUp;
      return WhenStopped(out);
    default:
      return;  // decided when all are here
  }
}

void Gang::MaybeAllExited(Actions& out) {
  if (state_ != State::kRunning && state_ != State::kStarting) return;
  bool all = true;      // have exited
  bool awaited = true;  // all that are waited for have
  bool any_awaited = false;
  bool chief_done = false;
  bool good = true;
  std::optional<int> code;  // 0 when a sidecar's own is another
  for (const Member& member : members_) {
    if (!member.rank) continue;
    const RoleKind kind = RoleOf(member.node).kind;
    const bool never = terminating_ && !nodes_[member.node].started;  // its role waited, and will not start
    const bool ended = never || member.state == MemberState::kExited;
    const bool failed = ended && (!member.exit || member.exit->supervisor_lost || member.exit->status != 0);
    all &= ended;
    if (kind != RoleKind::kSidecar) {
      good &= !failed;
    } else if (failed) {
      code = 0;
    }
    if (kind == RoleKind::kTracked || kind == RoleKind::kChief) {
      any_awaited = true;
      awaited &= ended;
    }
    chief_done |= kind == RoleKind::kChief && ended && !failed;
  }
  if (terminating_) {
    if (!all || undecided_) return;
    if (!good) out.emplace_back(Note{"terminated", "Slurm ended the job"});
    if (good) out.emplace_back(Note{"succeeded", "all members have exited with code 0"});
    return Finish(good, std::nullopt, good ? code : std::nullopt, out);
  }
  if (Warned()) {
    if (any_awaited ? awaited : all) PlannedStop(out);
    return;
  }
  // Before all have been started, only a chief can end it: what starts later belongs to it too.
  const bool over = chief_done || (state_ == State::kRunning && (any_awaited ? awaited : all));
  if (!over) return;
  if (all) {
    out.emplace_back(Note{"succeeded", "all members have exited with code 0"});
    return Finish(true, std::nullopt, code, out);
  }
  out.emplace_back(Note{"succeeded", chief_done
                                         ? "the chief has exited with code 0; the others are stopped"
                                         : "all tracked members have exited with code 0; the others are "
                                           "stopped"});
  next_ = Next::kSucceed;
  out.emplace_back(Persist{});
  Stop(out);
}

}  // namespace muster::gang
