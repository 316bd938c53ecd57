// How a generation ends and the next one begins.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/planted.h"
#include "daemon/gang/gang.h"

namespace muster::gang {

// ---- starting

void Gang::StartNext(const Placement& placement, Actions& out) {
  generation_ = std::max(generation_, newest_seen_) + 1;
  began_ = true;
  state_ = State::kStarting;
  last_exec_ns_ = 0;
  next_ = Next::kRestart;
  growing_ = false;
  charged_ = charged_user_ = 0;
  rejected_.reset();
  const bool first = active_.empty();
  const bool others = placement.active != active_;
  before_ = durable_ ? std::vector<uint32_t>() : active_;
  durable_ |= others;
  active_ = placement.active;
  AssignRanks();
  for (Node& node : nodes_) node.started = false;
  for (Member& member : members_) {
    if (!member.rank) continue;
    member.state = MemberState::kWaiting;
    member.generation = generation_;
    member.executed = false;
    member.exit.reset();
  }
  if (!placement.changes.empty()) out.emplace_back(Note{"placement", placement.changes});
  const size_t before = out.size();
  StartReady(out);
  // Those that only wait learn who is who now, and that they are not in it.
  if (out.size() > before) {
    auto& start = std::get<StartGeneration>(out[before]);
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].present && !IsActive(node)) start.nodes.push_back(node);
    }
    std::sort(start.nodes.begin(), start.nodes.end());
  }
  out.emplace_back(Persist{});  // with what the start has settled: the checkpoint it begins from
  if (settings_.order_by_topology && others && (tree_ || first)) out.emplace_back(Note{"order", OrderText()});
  out.emplace_back(Note{"starting", fmt::format("generation {} is started", generation_)});
}

// Nodes were left whose processes only exited. These have gone before anybody was told of the generation without them, for its record is
// not in the store yet. A generation on the nodes of the one before needs no record to start.
void Gang::PlaceAgain(Actions& out) {
  // A node that has joined again meanwhile has not said yet that it still exits.
  const auto busy = [this](uint32_t node) { return !IsActive(node) && !nodes_[node].stopped; };
  if (state_ != State::kStarting || terminating_ || before_.empty() || before_ == active_ ||
      std::any_of(before_.begin(), before_.end(), busy))
    return;
  std::swap(active_, before_);
  const Placement placement = Place(Free::kWhenStopped);
  if (placement.active != active_) return std::swap(active_, before_);
  for (const uint32_t node : before_) nodes_[node].stopped = true;
  durable_ = false;
  out.emplace_back(StopGeneration{generation_, {}});
  out.emplace_back(Note{"placement", "no node is left out: nobody had been told of the generation yet"});
  StartNext(placement, out);
}

bool Gang::RoleReady(uint32_t role) const {
  const Role& r = settings_.roles[role];
  if (!r.after) return true;
  return std::all_of(members_.begin(), members_.end(), [&](const Member& m) {
    if (!m.rank || RoleOf(m.node).name != settings_.roles[*r.after].name) return true;
    const bool done = m.state == MemberState::kExited && m.exit && m.exit->status == 0;
    return r.after_done ? done : m.executed || done;
  });
}

void Gang::StartReady(Actions& out) {
  if (terminating_) return;
  std::vector<uint32_t> nodes;
  for (const uint32_t i : active_) {
    if (nodes_[i].started || !nodes_[i].present || !RoleReady(RoleIndex(i))) continue;
    nodes_[i].started = true;
    nodes_[i].stopped = false;
    for (const uint32_t task : nodes_[i].tasks) members_[task].state = MemberState::kRunning;
    nodes.push_back(i);
  }
  if (nodes.empty()) return;
  std::sort(nodes.begin(), nodes.end());
  out.emplace_back(StartGeneration{generation_, std::move(nodes), durable_});
}

// To a node that may have forgotten: it does nothing twice.
void Gang::StartAgain(uint32_t node, Actions& out) {
  if (IsActive(node) && !nodes_[node].started) return StartReady(out);
  out.emplace_back(StartGeneration{generation_, {node}, durable_});
}

// ---- stopping

void Gang::Stop(Actions& out) {
  const bool again = state_ == State::kStopping;
  state_ = State::kStopping;
  out.emplace_back(SetTimer{Timer::kProgress, -1});
  out.emplace_back(SetTimer{Timer::kGrace, -1});
  timed_ = false;
  out.emplace_back(SetTimer{Timer::kExiting, -1});
  if (!again) out.emplace_back(StopGeneration{generation_, PresentNodes(), false, LastWords()});
  WhenStopped(out);
}

// Whether members that live are told before they are killed. Whom Slurm ends, or a planned stop, has been told.
bool Gang::LastWords() const {
  return settings_.last_words_ms > 0 && fault_ && !fault_->planned && next_ != Next::kSucceed &&
         !terminating_ && !requeue_for_;
}

// Slurm ends the job: what becomes of it is to be known before Slurm's SIGKILL.
void Gang::EndLastWords(Actions& out) {
  if (state_ == State::kStopping && settings_.last_words_ms > 0 && !AllStopped())
    out.emplace_back(StopGeneration{generation_, PresentNodes()});
}

void Gang::NoteLastWords(Actions& out) {
  uint32_t took = 0;
  std::string killed;
  for (Node& node : nodes_) {
    const uint32_t ms = std::exchange(node.last_words_ms, 0);
    took = std::max(took, ms);
    if (ms > 0 && ms >= settings_.last_words_ms) killed += (killed.empty() ? "" : ", ") + node.name;
  }
  if (took == 0) return;
  std::string text = fmt::format("the members' last words took {:.1f} s", took / 1e3);
  if (!killed.empty()) text += "; killed when the time was over: members on " + killed;
  out.emplace_back(Note{"last_words", std::move(text)});
}

// Adds a user fault to those that count, and drops the user faults that are older than forgive_after, if the gang has made progress
// since the newest of them. A user fault whose time is not known (0) is never dropped.
void Gang::ChargeUserFault(int64_t time_ns) {
  const int64_t now = std::max(time_ns, user_fault_times_.empty() ? 0 : user_fault_times_.back());
  const int64_t counts_ns = settings_.forgive_after_ms * 1'000'000;
  progress_before_charge_ = std::exchange(progress_since_user_fault_, false);
  if (counts_ns > 0 && progress_before_charge_)
    std::erase_if(user_fault_times_, [&](int64_t time) { return time > 0 && now - time >= counts_ns; });
  user_fault_times_.push_back(now);
}

// Called when fault_ has been replaced by another fault: makes the charge that was made for the old fault fit the new fault.
void Gang::Recharge() {
  const uint32_t due = fault_->cause == CauseClass::kUser ? 1 : 0;
  if (due > charged_user_) ChargeUserFault(fault_->exit.time_ns);
  if (due < charged_user_) {
    user_fault_times_.pop_back();
    progress_since_user_fault_ |= progress_before_charge_;
  }
  charged_user_ = due;
}

void Gang::Fail(Fault fault, Actions& out) {
  if (terminating_) next_ = Next::kGiveUp;  // no new generation
  charged_ = fault.planned ? 0 : 1;
  charged_user_ =
      fault.planned || (fault.cause != CauseClass::kUser && !MUSTER_PLANTED(all_faults_charged)) ? 0 : 1;
  if (charged_user_ > 0) ChargeUserFault(fault.exit.time_ns);
  restarts_without_progress_ += charged_;
  fault_time_ns_ = fault.exit.time_ns;
  if (MUSTER_PLANTED(told_when_seen)) out.emplace_back(Note{"fault", fault.what});
  fault_ = std::move(fault);
  Stop(out);
}

void Gang::GiveUp(const std::string& why, Actions& out) {
  next_ = Next::kGiveUp;
  if (!fault_) fault_ = Fault{.what = why, .cause = CauseClass::kInfrastructure};
  out.emplace_back(SetTimer{Timer::kJoin, -1});
  if (state_ == State::kJoining || state_ == State::kTesting || state_ == State::kRecovering) {
    // Nothing of ours runs, or what runs belongs to a generation that its supervisors will end when told to
    // finish.
    state_ = State::kStopping;
    for (Node& node : nodes_) node.stopped = true;
    return WhenStopped(out);
  }
  Stop(out);
}

void Gang::On(const NodeStopped& event, Actions& out) {
  if (event.node >= nodes_.size()) return;
  Node& node = nodes_[event.node];
  // What has gone may be of the generation that this one was started beside.
  const bool gone = node.exiting > 0 && event.generation >= node.exiting;
  if (event.generation < generation_ && !gone) return;
  // A newer one is that of a coordinator before, which is stopped with this one.
  if (event.generation > generation_ && state_ != State::kStopping) return;
  if (event.lease_port != 0) node.lease_port = event.lease_port;
  if (state_ == State::kRecovering) {
    for (const uint32_t task : node.tasks) {
      if (members_[task].state == MemberState::kRunning) members_[task].state = MemberState::kStopped;
    }
  }
  if (state_ == State::kStarting || state_ == State::kRunning) {
    if ((!IsActive(event.node) || !node.started) && !MUSTER_PLANTED(late_stop_restarts)) {
      if (event.unkillable > 0) {
        Unkillable(event.node, event.unkillable, out);
        out.emplace_back(Persist{});  // a successor is not to take it for a spare
      }
      node.stopped = true;  // it had something of an older generation, and is free now
      if (gone && IsSpare(event.node))
        out.emplace_back(Note{"node_returned", fmt::format("node {} may be used again: its processes of "
                                                           "generation {} have gone",
                                                           node.name, node.exiting)});
      node.exiting = 0;
      if (gone && event.unsent) PlaceAgain(out);
      return MaybeGrow(out);
    }
    // The coordinator before this one ordered it, and what it ordered cannot be taken back.
    Fail(Fault{.what = "the coordinator was lost while the generation changed",
               .cause = CauseClass::kInfrastructure},
         out);
  }
  if (state_ != State::kStopping && state_ != State::kTesting) return;
  if (event.unkillable > 0) Unkillable(event.node, event.unkillable, out);
  node.stopped = true;
  node.exiting = 0;
  if (IsActive(event.node)) node.last_words_ms = event.last_words_ms;
  WhenStopped(out);
  if (event.unkillable > 0) TestSpoiled(event.node, out);
}

// What SIGKILL has ended runs no more of its program, however long the kernel needs to free its memory.
void Gang::On(const NodeExiting& event, Actions& out) {
  if (event.node >= nodes_.size() || event.generation < generation_ || nodes_[event.node].stopped) return;
  const bool runs = state_ == State::kStarting || state_ == State::kRunning;
  if (runs ? IsActive(event.node) || event.generation > generation_ : state_ != State::kStopping) return;
  Node& node = nodes_[event.node];
  if (node.exiting == 0)
    out.emplace_back(
        Note{"node_exiting", fmt::format("node {}: SIGKILL has ended all processes of generation {}, "
                                         "and some of them have not gone yet",
                                         node.name, event.generation)});
  node.exiting = event.generation;
  WhenStopped(out);
}

// What survives SIGKILL sits in the kernel and will not run the program's code again: it dies when it comes out.
// The node is of no use to the gang.
void Gang::Unkillable(uint32_t node, uint32_t count, Actions& out) {
  Node& n = nodes_[node];
  durable_ |= IsActive(node);
  if (!n.excluded.empty()) return;  // said already
  n.excluded = fmt::format("{} processes of generation {} survive SIGKILL (uninterruptible I/O?)", count,
                           n.exiting > 0 ? n.exiting : generation_);
  out.emplace_back(DrainInSlurm{node, n.excluded});
  out.emplace_back(Note{"unkillable", fmt::format("node {}: {}", n.name, n.excluded)});
}

// ---- what follows

void Gang::WhenStopped(Actions& out, bool leave_exiting) {
  if (state_ != State::kStopping || undecided_) return;
  if (!AllStopped(leave_exiting && MayLeaveExiting())) {
    if (AllStopped(true)) out.emplace_back(SetTimer{Timer::kExiting, settings_.exiting_ms});
    return;
  }
  if (next_ == Next::kSucceed) return Finish(true, std::nullopt, 0, out);
  if (next_ == Next::kRestart && AnyAway(active_)) return;  // it will be back, or silent
  NoteLastWords(out);
  const std::optional<uint32_t> asked = WhoAskedToStop();
  if (asked) {
    fault_ = MemberFault(*asked, *members_[*asked].exit);
    next_ = Next::kGiveUp;
  }
  const Fault fault = fault_.value_or(Fault{.what = "unknown", .cause = CauseClass::kInfrastructure});
  last_fault_ = fault;
  std::string verdict;
  if (asked) {
    verdict = "by this code the program asks that the gang ends (--gang=stop_codes)";
  } else if (!Warned()) {
    verdict = Judge(fault);
  }
  if (next_ == Next::kRestart) LeaveDrained(out);
  const Placement placement = Place(Free::kNow);
  if (next_ == Next::kRestart && Warned()) {
    next_ = Next::kRequeue;
  } else if (next_ == Next::kRestart && batch_node_ && nodes_[*batch_node_].lost) {
    next_ = settings_.requeue ? Next::kRequeue : Next::kGiveUp;
    verdict = "the job's script ran there";
  } else if (next_ == Next::kRestart && !placement.why_not.empty()) {
    // A task that was ended from outside was ended on purpose.
    const bool killed =
        std::any_of(active_.begin(), active_.end(), [&](uint32_t node) { return nodes_[node].broken; });
    next_ = CanRequeue() && !killed ? Next::kRequeue : Next::kGiveUp;
    verdict = placement.why_not;
  }
  if (next_ == Next::kRequeue) verdict += verdict.empty() ? "the job is requeued" : "; the job is requeued";
  if (next_ == Next::kRestart && !placement.changes.empty()) verdict += "; " + placement.changes;
  const std::string kind = fault.planned ? "planned" : "fault";
  out.emplace_back(Note{kind, fault.what + (verdict.empty() ? "" : "; " + verdict)});
  out.emplace_back(ReportToJob{Speaker(fault),
                               ReportText(fault) + (verdict.empty() ? "" : "muster:   " + verdict + "\n")});
  if (next_ == Next::kRequeue) return Requeue(fault.what, out);
  if (next_ == Next::kGiveUp) {
    const bool own = fault.from_member && !fault.exit.supervisor_lost && fault.exit.status != 0;
    out.emplace_back(Note{"failed", "the gang has ended"});
    return Finish(false, own ? std::optional(fault.task) : std::nullopt,
                  own ? std::nullopt : std::optional(1), out);
  }
  ++restarts_[fault.planned ? "planned" : ToString(fault.cause)];
  fault_.reset();
  StartNext(placement, out);
}

// Whether the member's program has exited with one of the stop codes: another generation, or another run of the job, would come to the
// same. A sidecar does not speak for the gang.
bool Gang::MeansStop(const Member& member) const {
  return member.rank && member.exit && !member.exit->supervisor_lost && WIFEXITED(member.exit->status) &&
         settings_.stop_codes.contains(WEXITSTATUS(member.exit->status)) &&
         RoleOf(member.node).kind != RoleKind::kSidecar;
}

// The first of them in this generation.
std::optional<uint32_t> Gang::WhoAskedToStop() const {
  std::optional<uint32_t> first;
  for (uint32_t task = 0; task < members_.size(); ++task) {
    if (!MeansStop(members_[task])) continue;
    if (!first || members_[task].exit->time_ns < members_[*first].exit->time_ns) first = task;
  }
  return first;
}

// Whether the budget allows another generation; says so.
std::string Gang::Judge(const Fault& fault) {
  if (next_ != Next::kRestart) return "";
  if (fault.planned) return "a planned restart, not counted against the limit";
  const bool user = fault.cause == CauseClass::kUser;
  const bool again = !fault.signature.empty() && fault.signature == last_signature_;
  last_signature_ = fault.signature;
  if (user && user_faults() + (MUSTER_PLANTED(one_restart_less) ? 1 : 0) > settings_.restarts) {
    next_ = Next::kGiveUp;
    return fmt::format("the limit of {} restarts (--gang=restarts=N) is used up", settings_.restarts);
  }
  if (again) {
    next_ = Next::kGiveUp;
    return "the same fault as the last time, without progress in between: another restart would not help";
  }
  if (restarts_without_progress_ > kMaxRestartsWithoutProgress) {
    next_ = Next::kGiveUp;
    return fmt::format("{} restarts without progress", kMaxRestartsWithoutProgress);
  }
  return user ? fmt::format("restart {} of {}", user_faults(), settings_.restarts)
              : std::string("restart, not counted against the limit");
}

void Gang::Requeue(const std::string& why, Actions& out) {
  state_ = State::kRequeueing;
  out.emplace_back(Note{"requeue", why});
  out.emplace_back(Persist{});
  out.emplace_back(SetTimer{Timer::kRequeue, kRequeueTimeoutMs});
  OrderRequeue(why, out);
}

void Gang::OrderRequeue(const std::string& why, Actions& out) {
  requeue_ordered_ = true;
  std::vector<uint32_t> dead;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].lost && !nodes_[node].ended) dead.push_back(node);
  }
  out.emplace_back(RequeueJob{why, std::move(dead), launch_failed_});
}

void Gang::On(const RequeueFailed& event, Actions& out) {
  if (state_ != State::kRequeueing) return;
  const std::string what = fmt::format("the job could not be requeued: {}", event.why);
  out.emplace_back(Note{"failed", what});
  out.emplace_back(ReportToJob{Speaker({}), fmt::format("muster: gang {}: {}\n", settings_.id, what)});
  Finish(false, std::nullopt, 1, out);
}

void Gang::Finish(bool succeeded, std::optional<uint32_t> cause, std::optional<int> code, Actions& out) {
  state_ = State::kFinished;
  succeeded_ = succeeded;
  finish_cause_ = cause;
  finish_code_ = code;
  for (Node& node : nodes_) node.exiting = 0;
  for (size_t timer = 0; timer < kTimers; ++timer) out.emplace_back(SetTimer{static_cast<Timer>(timer), -1});
  OrderFinish(PresentNodes(), out);
  out.emplace_back(Persist{});
}

void Gang::OrderFinish(std::vector<uint32_t> nodes, Actions& out) const {
  out.emplace_back(FinishGang{succeeded_, finish_cause_, finish_code_, std::move(nodes)});
}

// A program that cannot read its checkpoint ends, and so do programs that wait for it. None of these ends is a fault of the program,
// even if the coordinator hears of an end before it hears of the checkpoint: the user fault that was charged for it is taken back.
void Gang::On(const CheckpointBad& event, Actions& out) {
  if (state_ == State::kRecovering && (!bad_ || bad_->generation <= event.generation)) bad_ = event;
  const bool stops = state_ == State::kStopping && next_ == Next::kRestart;
  if (event.generation != generation_ || (state_ != State::kStarting && state_ != State::kRunning && !stops))
    return;
  if (event.task >= members_.size() || rejected_ == event.step) return;
  if (!event.saved_anew) out.emplace_back(RejectCheckpoint{event.step, event.reason, event.manifest});
  rejected_ = event.step;
  Fault fault{
      .what = fmt::format("{}: the checkpoint of step {} does not verify: {}; {}", Who(event.task),
                          event.step, event.reason,
                          event.saved_anew ? "it has been saved anew since" : "going back to the one before"),
      .task = event.task,
      .cause = CauseClass::kInfrastructure};
  // The program may have read the new one meanwhile. If it has not, its end is the fault.
  if (!stops && event.saved_anew) return;
  if (!stops) return Fail(std::move(fault), out);
  if (!fault_ || fault_->planned || fault_->cause != CauseClass::kUser) return;
  fault_ = std::move(fault);
  Recharge();
}

void Gang::On(const Hung& event, Actions& out) {
  if (event.generation != generation_ || (state_ != State::kStarting && state_ != State::kRunning)) return;
  if (event.task >= members_.size() || terminating_ || Warned()) return;
  Fail(Fault{.what = event.what,
             .task = event.task,
             .cause = CauseClass::kInfrastructure,
             .signature = event.signature,
             .report = event.report},
       out);
}

}  // namespace muster::gang
