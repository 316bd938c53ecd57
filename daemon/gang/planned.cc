// What is done on purpose, at a checkpoint if there is one in time: nodes drained, nodes taken back, the job
// requeued before Slurm ends it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/gang/gang.h"

namespace muster::gang {
namespace {

constexpr char kGrows[] = "the gang grows";
constexpr int64_t kGraceAgainMs = 1'000;

const char* EndText(CauseClass cause) {
  return cause == CauseClass::kPreemption ? "the job is being preempted" : "the job's time limit is near";
}

}  // namespace

bool Gang::CanRequeue() const {
  return settings_.requeue && slurm_requeues_ && !terminating_;
}

// Each node tells of SIGTERM. While Slurm is asked about the next one, what it has said about the first one holds.
std::pair<bool, std::optional<CauseClass>> Gang::EndForRecord() const {
  const bool asks = undecided_ && Warned() && state_ != State::kFinished;
  return {terminating_ && !asks, warned()};
}

bool Gang::Planned() const {
  const auto draining = [](const Node& n) { return !n.draining.empty(); };
  return growing_ || requeue_for_ || std::any_of(nodes_.begin(), nodes_.end(), draining);
}

void Gang::On(const JobFacts& event, Actions& out) {
  batch_node_ = event.batch_node && *event.batch_node < nodes_.size() ? event.batch_node : std::nullopt;
  slurm_requeues_ = event.can_requeue;
  if (state_ == State::kRequeueing && !requeue_ordered_)
    OrderRequeue("the coordinator before ordered it", out);
  if (!batch_node_ || !nodes_[*batch_node_].lost || (state_ != State::kStarting && state_ != State::kRunning))
    return;
  Fail(Fault{.what = fmt::format("{}: dead or cut off", WhyUnusable(*batch_node_)),
             .cause = CauseClass::kInfrastructure},
       out);
}

void Gang::On(const DrainNode& event, Actions& out) {
  if (event.node >= nodes_.size() || state_ == State::kFinished) return;
  Node& node = nodes_[event.node];
  if (!node.excluded.empty() || !node.draining.empty()) return;
  if (!IsActive(event.node) || state_ == State::kRequeueing) {
    node.excluded = event.reason;
    out.emplace_back(Note{"drain", fmt::format("node {} is taken out: {}", node.name, event.reason)});
    out.emplace_back(DrainInSlurm{event.node, event.reason});
    return LeaveOut(event.node, {}, out);
  }
  const bool runs = state_ == State::kStarting || state_ == State::kRunning;
  if (runs && !Place(Free::kWhenStopped, event.node).why_not.empty())
    return Stay(event.node, event.reason, out);
  node.draining = event.reason;
  out.emplace_back(Persist{});  // for the coordinator after this one
  if (!runs) return;            // before the next generation starts
  out.emplace_back(Note{"drain", fmt::format("node {} is left at the next checkpoint, or in {} s: {}",
                                             node.name, settings_.grace_ms / 1000, event.reason)});
  AskForCheckpoint(out);
}

// It may finish what it runs; Slurm starts nothing new there.
void Gang::Stay(uint32_t node, const std::string& why, Actions& out) {
  out.emplace_back(
      Note{"drain", fmt::format("node {} cannot be replaced, so the gang stays there to its end: {}",
                                nodes_[node].name, why)});
  out.emplace_back(DrainInSlurm{node, why});
}

// Takes the nodes that are to be drained out, where there is still room without them.
void Gang::LeaveDrained(Actions& out) {
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].draining.empty()) continue;
    const bool room = Place(Free::kWhenStopped, i).why_not.empty();
    const std::string why = std::exchange(nodes_[i].draining, "");
    if (!room) {
      Stay(i, why, out);
      continue;
    }
    nodes_[i].excluded = why;
    out.emplace_back(DrainInSlurm{i, why});
  }
}

// For what waits for a checkpoint, but not for ever; or because Slurm has said that the job ends, perhaps to another generation,
// or to the coordinator before.
void Gang::AskForCheckpoint(Actions& out) {
  if (terminating_) out.emplace_back(TellMembers{true, true, "Slurm ends the job"});
  const auto draining = [](const Node& n) { return !n.draining.empty(); };
  const auto drained = std::find_if(nodes_.begin(), nodes_.end(), draining);
  if (!requeue_for_ && drained == nodes_.end()) return;
  out.emplace_back(
      TellMembers{true, false,
                  requeue_for_ ? EndText(*requeue_for_)
                               : fmt::format("node {} is drained: {}", drained->name, drained->draining)});
  // The timer of an end that is near may run already, and has what is left until that end.
  if (!Warned() && !(requeue_for_ && timed_)) out.emplace_back(SetTimer{Timer::kGrace, settings_.grace_ms});
}

// A gang that has shrunk, and nodes that could be taken back.
void Gang::MaybeGrow(Actions& out) {
  if (growing_ || !settings_.grow || terminating_ || requeue_for_) return;
  if (state_ != State::kRunning && state_ != State::kStarting) return;
  const Placement placement = Place(Free::kWhenStopped);
  if (!placement.why_not.empty() || placement.active.size() <= active_.size()) return;
  growing_ = true;
  out.emplace_back(Note{"growing", fmt::format("at the next checkpoint: {}", placement.changes)});
  out.emplace_back(TellMembers{true, false, kGrows});
}

void Gang::On(const EndNear& event, Actions& out) {
  const auto recorded = EndForRecord();
  const bool decided = std::exchange(undecided_, false);
  if (decided) {
    terminating_ = false;  // so that was the reason
    no_time_ = true;
    if (state_ == State::kStopping && next_ == Next::kGiveUp) next_ = Next::kRestart;
  }
  no_time_ |= event.signalled;
  EndLastWords(out);
  if (terminating_ || state_ == State::kFinished || state_ == State::kRequeueing) return;
  if (!requeue_for_) Announce(event, out);
  if (EndForRecord() != recorded) out.emplace_back(Persist{});
  if (!requeue_for_) return;
  const bool runs = state_ == State::kStarting || state_ == State::kRunning;
  // Members that Slurm has signalled run, though this coordinator may not have heard all of them yet.
  if ((event.signalled || decided || !timed_) && (runs || (Warned() && state_ != State::kStopping))) {
    timed_ = true;
    out.emplace_back(SetTimer{Timer::kGrace, std::max<int64_t>(event.left_ms, 0)});
  }
  if (!Warned()) return;
  // They may have ended, or stopped, while Slurm was asked.
  if (runs) return MaybeAllExited(out);
  WhenStopped(out);
}

void Gang::Announce(const EndNear& event, Actions& out) {
  const char* what = EndText(event.cause);
  if (!CanRequeue()) {
    if (std::exchange(told_of_end_, generation_) == generation_) return;
    out.emplace_back(Note{"end_near", fmt::format("{}: a checkpoint is asked for", what)});
    out.emplace_back(TellMembers{true, true, what});
    return;
  }
  out.emplace_back(
      Note{"end_near", fmt::format("{}: a checkpoint is asked for, then the job is requeued", what)});
  requeue_for_ = event.cause;
  timed_ = false;
  if (state_ != State::kStarting && state_ != State::kRunning) return;  // when it runs
  out.emplace_back(TellMembers{true, false, what});
}

// A requeue that has been decided stays, and so does a wish that members exit: they may have begun to.
void Gang::On(const EndMoved& /*event*/, Actions& out) {
  const bool decided = state_ == State::kRequeueing || state_ == State::kFinished ||
                       (state_ == State::kStopping && next_ == Next::kRequeue);
  if (requeue_for_ != CauseClass::kTimeLimit || no_time_ || decided) return;
  requeue_for_.reset();
  out.emplace_back(Note{"end_moved", "the job's time limit was extended: the job is not requeued"});
  // A drain has a time of its own; a gang that grows waits for a checkpoint.
  const auto draining = [](const Node& n) { return !n.draining.empty(); };
  if (std::none_of(nodes_.begin(), nodes_.end(), draining)) out.emplace_back(SetTimer{Timer::kGrace, -1});
  MaybeGrow(out);
}

void Gang::On(const CheckpointCommitted& event, Actions& out) {
  On(Progressed{event.step}, out);
  if (Planned()) PlannedStop(out);
}

// The time for a checkpoint is over. Members that Slurm has signalled are to be stopped before the job's end, so a gang that cannot stop
// them yet, because nodes are missing or Slurm is being asked why it ends the job, tries it again.
void Gang::GraceOver(Actions& out) {
  const bool waits =
      state_ == State::kJoining || state_ == State::kTesting || state_ == State::kRecovering || undecided_;
  if (Warned() && waits) out.emplace_back(SetTimer{Timer::kGrace, kGraceAgainMs});
  PlannedStop(out);
}

void Gang::PlannedStop(Actions& out) {
  if ((state_ != State::kRunning && state_ != State::kStarting) || terminating_ || !Planned()) return;
  Fault fault{.what = kGrows, .cause = CauseClass::kInfrastructure, .planned = true};
  for (const Node& node : nodes_) {
    if (!node.draining.empty()) fault.what = fmt::format("node {} is drained: {}", node.name, node.draining);
  }
  LeaveDrained(out);
  growing_ = false;
  if (requeue_for_) {
    fault.cause = *requeue_for_;
    fault.what = EndText(*requeue_for_);
    next_ = Next::kRequeue;
  } else {
    // What it was to be for may have gone again.
    const Placement placement = Place(Free::kWhenStopped);
    if (!placement.why_not.empty() || placement.active == active_) {
      out.emplace_back(Persist{});
      return;
    }
  }
  Fail(fault, out);
}

void Gang::On(const Terminating& event, Actions& out) {
  if (state_ == State::kFinished) return;
  const auto recorded = EndForRecord();
  const bool news = !std::exchange(terminating_, true);
  const bool decided = undecided_ && !event.undecided;
  // The coordinator before may have died before Slurm had said why it sent SIGTERM, so Slurm is asked again.
  const bool asked_again = std::exchange(why_unknown_, false) && event.undecided;
  if (news || decided || asked_again) undecided_ = event.undecided;
  if (state_ == State::kRequeueing || (!news && !decided))
    return;  // the former is how Slurm ends what it requeues
  if (news) {
    out.emplace_back(
        Note{"terminating", fmt::format("Slurm sent {}: no new generation", SignalName(event.signal))});
    out.emplace_back(TellMembers{true, true, fmt::format("Slurm sent {}", SignalName(event.signal))});
  }
  if (EndForRecord() != recorded) out.emplace_back(Persist{});
  if (state_ == State::kJoining || state_ == State::kTesting) {
    out.emplace_back(Note{"terminated", "Slurm ended the job before its first generation"});
    Finish(false, std::nullopt, std::nullopt, out);
  } else if (state_ == State::kStopping) {
    // A job that was cancelled is not requeued, though its end was near.
    const bool cancelled = next_ == Next::kRequeue && !undecided_ && !event.may_run_again;
    if (cancelled) out.emplace_back(Note{"terminated", "Slurm ended the job before its requeue"});
    if (next_ == Next::kRestart || cancelled) next_ = Next::kGiveUp;
    EndLastWords(out);
    WhenStopped(out);
  } else {
    MaybeAllExited(out);
  }
}

}  // namespace muster::gang
