#include "daemon/gang/gang.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace muster::gang {

const char* ToString(State state) {
  switch (state) {
    case State::kJoining:
      return "joining";
    case State::kRecovering:
      return "recovering";
    case State::kStarting:
      return "starting";
    case State::kRunning:
      return "running";
    case State::kStopping:
      return "stopping";
    case State::kFinished:
      return "finished";
  }
  return "unknown";
}

namespace {

constexpr char kHalfChanged[] = "the coordinator was lost while the generation changed";

std::string SignalName(uint32_t signal) {
  const char* name = sigabbrev_np(static_cast<int>(signal));
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace

std::string DescribeStatus(int status, bool oom_killed) {
  if (oom_killed) return "was killed by the kernel's out-of-memory killer (SIGKILL)";
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by {}{}", SignalName(static_cast<uint32_t>(WTERMSIG(status))),
                       WCOREDUMP(status) ? " (core dumped)" : "");
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

namespace {

// A person's Ctrl-C in srun (or scancel --signal=INT), to which the program has given way: no fault to heal.
bool Interrupted(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGINT : WEXITSTATUS(status) == 128 + SIGINT;
}

}  // namespace

Gang::Gang(Settings settings, uint64_t generation, uint32_t restarts_used, bool recovering)
    : settings_(std::move(settings)),
      state_(recovering ? State::kRecovering : State::kJoining),
      generation_(generation),
      nodes_(settings_.node_count),
      members_(settings_.task_count),
      user_faults_(restarts_used),
      began_(recovering) {
  for (size_t i = 0; i < nodes_.size() && i < settings_.node_names.size(); ++i) {
    nodes_[i].name = settings_.node_names[i];
  }
}

std::vector<Action> Gang::Begin() {
  return {SetTimer{Timer::kJoin, settings_.join_timeout_ms}, Persist{},
          Note{"joining",
               fmt::format("waiting for {} tasks on {} nodes", settings_.task_count, settings_.node_count)}};
}

std::vector<Action> Gang::Handle(const Event& event) {
  Actions out;
  const uint64_t before = generation_;
  std::visit([&](const auto& e) { On(e, out); }, event);
  // One event may end a generation and start the next: what comes before the start is about the old one.
  uint64_t about = before;
  for (Action& action : out) {
    if (const auto* start = std::get_if<StartGeneration>(&action)) about = start->generation;
    if (auto* note = std::get_if<Note>(&action)) note->generation = about;
  }
  return out;
}

// ---- nodes
// -------------------------------------------------------------------------------------------------------

void Gang::On(const NodeJoined& event, Actions& out) {
  if (event.node >= nodes_.size()) return;
  Node& node = nodes_[event.node];
  const bool returning = node.joined;
  node.joined = true;
  node.present = true;
  node.name = event.name;
  node.lease_port = event.lease_port;
  node.tasks.clear();
  const bool learning = state_ == State::kJoining || state_ == State::kRecovering;
  for (const MemberInfo& info : event.members) {
    if (info.task >= members_.size()) continue;
    node.tasks.push_back(info.task);
    Member& member = members_[info.task];
    member.node = event.node;
    member.local_id = info.local_id;
    member.known = true;
    if (!learning) continue;
    member.state = info.state;
    member.generation = info.generation;
    member.executed = info.state == MemberState::kRunning;
    member.exit = info.exit;
    if (info.state == MemberState::kWaiting) continue;
    // The record is written behind: the members may be further than it says.
    state_ = State::kRecovering;
    began_ |= info.generation > 0;
    generation_ = std::max(generation_, info.generation);
  }
  if (AllPresent()) out.emplace_back(SetTimer{Timer::kReconnect, -1});
  switch (state_) {
    case State::kJoining:
    case State::kRecovering:
      if (AllPresent()) Recover(out);
      break;
    case State::kFinished:
      OrderFinish({event.node}, out);
      break;
    default:
      if (returning)
        out.emplace_back(Note{"node_back", fmt::format("node {} is connected again", node.name)});
      Reconcile(event, out);
      break;
  }
}

// A node is back while a generation starts, runs or is stopped: what happened there meanwhile is made up for.
void Gang::Reconcile(const NodeJoined& event, Actions& out) {
  bool stopped = true;
  uint32_t unkillable = 0;
  for (const MemberInfo& info : event.members) {
    if (info.task >= members_.size()) continue;
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
      ExitSeen(info.task, info.exit.value_or(Exit{.status = SIGKILL}), out);
    }
  }
  if (state_ == State::kStarting || state_ == State::kRunning) {
    // Also to a node that runs it already: its daemon may have restarted and forgotten.
    out.emplace_back(StartGeneration{generation_, {event.node}});
    if (state_ == State::kStarting) MaybeRunning(out);
  } else if (state_ == State::kStopping) {
    Node& node = nodes_[event.node];
    node.stopped = stopped;
    if (unkillable > 0) StopUnkillable(node, unkillable);
    if (stopped) {
      WhenStopped(out);
    } else {
      out.emplace_back(StopGeneration{generation_, {event.node}});
    }
  }
}

// All nodes are here, each with its members' states: from nothing at all to a generation half stopped.
void Gang::Recover(Actions& out) {
  out.emplace_back(SetTimer{Timer::kJoin, -1});
  const auto failed = [](const Member& m) { return m.exit && m.exit->status != 0; };
  bool all_waiting = true;
  bool all_running = true;
  std::optional<uint32_t> lost;
  std::optional<uint32_t> cause;
  for (uint32_t task = 0; task < members_.size(); ++task) {
    const Member& member = members_[task];
    all_waiting &= member.state == MemberState::kWaiting;
    if (member.exit && member.exit->supervisor_lost) lost = task;
    // A member of an older generation than the newest one seen does not run what the gang runs.
    const bool current = member.generation == generation_;
    const bool done = member.state == MemberState::kExited && !failed(member);
    all_running &= current && (done || member.state == MemberState::kRunning);
    // The earliest failure; a stopped member without a time was killed because of another's.
    if (!current || !failed(member)) continue;
    if (member.state == MemberState::kExited && !cause) cause = task;
    const int64_t time = member.exit->time_ns;
    if (time > 0 && (!cause || members_[*cause].exit->time_ns == 0 || time < members_[*cause].exit->time_ns))
      cause = task;
  }
  for (Node& node : nodes_) node.stopped = false;
  if (all_waiting && !lost) {
    out.emplace_back(Note{"joined", fmt::format("all {} nodes are here", nodes_.size())});
    return StartNext(out);
  }
  if (lost) {
    fault_ = MemberFault(*lost, *members_[*lost].exit);
    return GiveUp(fault_->what, out);
  }
  state_ = State::kRunning;
  if (!all_running) {
    return Fail(
        cause ? MemberFault(*cause, *members_[*cause].exit) : Fault{.what = kHalfChanged, .user = false},
        out);
  }
  out.emplace_back(
      Note{"recovered", fmt::format("the coordinator took over; generation {} runs on", generation_)});
  out.emplace_back(Persist{});
  out.emplace_back(StartGeneration{generation_, PresentNodes()});  // the agents learn the new term
  out.emplace_back(SetTimer{Timer::kProgress, settings_.progress_after_ms});
  MaybeAllExited(out);
}

void Gang::On(const NodeLeft& event, Actions& out) {
  if (event.node >= nodes_.size() || !nodes_[event.node].present) return;
  const bool first = AllPresent();
  nodes_[event.node].present = false;
  if (state_ == State::kFinished) return;
  out.emplace_back(Note{"node_away", fmt::format("node {} is not connected", nodes_[event.node].name)});
  if (first && state_ != State::kJoining && state_ != State::kRecovering) {
    out.emplace_back(SetTimer{Timer::kReconnect, settings_.reconnect_ms});
  }
  if (giving_up_ && state_ == State::kStopping) WhenStopped(out);
}

// ---- members
// -----------------------------------------------------------------------------------------------------

void Gang::On(const MemberExecuted& event, Actions& out) {
  if (event.task >= members_.size() || event.generation != generation_) return;
  members_[event.task].executed = true;
  last_exec_ns_ = std::max(last_exec_ns_, event.time_ns);
  if (state_ == State::kStarting) MaybeRunning(out);
}

void Gang::MaybeRunning(Actions& out) {
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const Member& m) { return m.executed || m.state == MemberState::kExited; });
  if (!all) return;
  state_ = State::kRunning;
  std::string text = fmt::format("generation {} runs", generation_);
  if (fault_time_ns_ > 0 && last_exec_ns_ > fault_time_ns_) {
    text +=
        fmt::format(", {:.1f} ms after the fault", static_cast<double>(last_exec_ns_ - fault_time_ns_) / 1e6);
    out.emplace_back(ReportToJob{0, fmt::format("muster: gang {}: {}\n", settings_.id, text)});
  }
  out.emplace_back(Note{"running", text});
  out.emplace_back(Persist{});
  out.emplace_back(SetTimer{Timer::kProgress, settings_.progress_after_ms});
  MaybeAllExited(out);
}

void Gang::On(const MemberExited& event, Actions& out) {
  if (event.task >= members_.size()) return;
  if (event.exit.supervisor_lost) {
    if (state_ == State::kFinished) return;
    ExitSeen(event.task, event.exit, out);
  } else if (event.generation == generation_) {
    ExitSeen(event.task, event.exit, out);
  }
}

void Gang::ExitSeen(uint32_t task, const Exit& exit, Actions& out) {
  Member& member = members_[task];
  const bool known_exit = member.state == MemberState::kExited && !exit.supervisor_lost;
  if (known_exit) return;
  if (member.state == MemberState::kExited && member.exit && member.exit->supervisor_lost) return;
  member.state = MemberState::kExited;
  member.exit = exit;
  switch (state_) {
    case State::kJoining:
      if (exit.supervisor_lost) {
        fault_ = MemberFault(task, exit);
        GiveUp(fault_->what, out);
      }
      break;
    case State::kRecovering:
      break;  // decided when all nodes are here
    case State::kStarting:
    case State::kRunning:
      if (terminating_) {
        MaybeAllExited(out);
      } else if (exit.supervisor_lost || Interrupted(exit.status)) {
        fault_ = MemberFault(task, exit);
        GiveUp(fault_->what, out);
      } else if (exit.status != 0) {
        Fail(MemberFault(task, exit), out);
      } else if (state_ == State::kStarting) {
        MaybeRunning(out);  // it may have ended before its exec was seen
      } else {
        MaybeAllExited(out);
      }
      break;
    case State::kStopping:
      // Exits seen while stopping are mostly Muster's own SIGKILL. One that came before the first cause is
      // the cause.
      if (exit.supervisor_lost) {
        if (!giving_up_) GiveUp(MemberFault(task, exit).what, out);
      } else if (exit.status != 0 && fault_ && fault_->from_member && exit.time_ns > 0 &&
                 exit.time_ns < fault_->exit.time_ns) {
        const bool user = fault_->user;
        fault_ = MemberFault(task, exit);
        fault_->user = user;  // the budget has been charged already
        fault_time_ns_ = exit.time_ns;
      }
      break;
    default:
      break;
  }
}

void Gang::MaybeAllExited(Actions& out) {
  if (state_ != State::kRunning && !(terminating_ && state_ == State::kStarting)) return;
  const auto exited = [](const Member& m) { return m.state == MemberState::kExited; };
  if (!std::all_of(members_.begin(), members_.end(), exited)) return;
  const bool good = std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.exit && !m.exit->supervisor_lost && m.exit->status == 0;
  });
  if (good) out.emplace_back(Note{"succeeded", "all members have exited with code 0"});
  if (!good) out.emplace_back(Note{"terminated", "Slurm ended the job"});
  Finish(good, std::nullopt, std::nullopt, out);
}

Fault Gang::MemberFault(uint32_t task, const Exit& exit) const {
  const Member& member = members_[task];
  const std::string& host = nodes_[member.node].name;
  Fault fault{.task = task, .from_member = true, .exit = exit};
  if (exit.supervisor_lost) {
    fault.what = fmt::format(
        "rank {} on {}: the task was ended from outside (scancel, or its supervisor was killed)", task, host);
    fault.user = false;
  } else {
    fault.what = fmt::format("rank {} on {} ({}, pid {}) {}", task, host,
                             exit.program.empty() ? "program unknown" : exit.program, exit.pid,
                             DescribeStatus(exit.status, exit.oom_killed));
  }
  return fault;
}

// ---- generations
// -------------------------------------------------------------------------------------------------

void Gang::StartNext(Actions& out) {
  ++generation_;
  began_ = true;
  state_ = State::kStarting;
  last_exec_ns_ = 0;
  for (Node& node : nodes_) node.stopped = false;
  for (Member& member : members_) {
    member.state = MemberState::kRunning;
    member.generation = generation_;
    member.executed = false;
    member.exit.reset();
  }
  out.emplace_back(StartGeneration{generation_, PresentNodes()});
  out.emplace_back(Persist{});
  out.emplace_back(Note{"starting", fmt::format("generation {} is started", generation_)});
}

void Gang::Fail(Fault fault, Actions& out) {
  state_ = State::kStopping;
  giving_up_ |= terminating_;  // no new generation
  ++restarts_without_progress_;
  if (fault.user) ++user_faults_;
  fault_time_ns_ = fault.exit.time_ns;
  fault_ = std::move(fault);
  out.emplace_back(SetTimer{Timer::kProgress, -1});
  out.emplace_back(StopGeneration{generation_, PresentNodes()});
}

void Gang::GiveUp(const std::string& why, Actions& out) {
  giving_up_ = true;
  if (!fault_) fault_ = Fault{.what = why, .user = false};
  out.emplace_back(SetTimer{Timer::kJoin, -1});
  out.emplace_back(SetTimer{Timer::kProgress, -1});
  if (state_ == State::kJoining || state_ == State::kRecovering) {
    // Nothing of ours runs, or what runs belongs to a generation that its supervisors will end when told to
    // finish.
    state_ = State::kStopping;
    for (Node& node : nodes_) node.stopped = true;
    WhenStopped(out);
    return;
  }
  if (state_ != State::kStopping) out.emplace_back(StopGeneration{generation_, PresentNodes()});
  state_ = State::kStopping;
  WhenStopped(out);
}

void Gang::On(const NodeStopped& event, Actions& out) {
  if (event.node >= nodes_.size() || event.generation != generation_) return;
  Node& node = nodes_[event.node];
  if (state_ == State::kRecovering) {
    for (const uint32_t task : node.tasks) {
      if (members_[task].state == MemberState::kRunning) members_[task].state = MemberState::kStopped;
    }
  }
  // The coordinator before this one ordered it, and what it ordered cannot be taken back.
  if (state_ == State::kStarting || state_ == State::kRunning) {
    Fail(Fault{.what = kHalfChanged, .user = false}, out);
  }
  if (state_ != State::kStopping) return;
  node.lease_port = event.lease_port;
  if (event.unkillable > 0) StopUnkillable(node, event.unkillable);
  node.stopped = true;
  WhenStopped(out);
}

// The generation may still run there: nothing new may start, and in this step nobody can take its place.
void Gang::StopUnkillable(const Node& node, uint32_t unkillable) {
  giving_up_ = true;
  fault_ = Fault{
      .what = fmt::format("node {}: {} processes of generation {} survive SIGKILL (uninterruptible I/O?)",
                          node.name, unkillable, generation_),
      .user = false};
}

void Gang::WhenStopped(Actions& out) {
  if (state_ != State::kStopping || !AllStopped(giving_up_)) return;
  if (!giving_up_ && !AllPresent()) return;  // the reconnect timer decides
  const Fault fault = fault_.value_or(Fault{.what = "unknown"});
  last_fault_ = fault;
  std::string verdict;
  if (!giving_up_ && user_faults_ > settings_.restarts && fault.user) {
    giving_up_ = true;
    verdict = fmt::format("the limit of {} restarts (--gang=restarts=N) is used up", settings_.restarts);
  } else if (!giving_up_ && restarts_without_progress_ > kMaxRestartsWithoutProgress) {
    giving_up_ = true;
    verdict = fmt::format("{} restarts without progress", kMaxRestartsWithoutProgress);
  } else if (!giving_up_) {
    verdict = fault.user ? fmt::format("restart {} of {}", user_faults_, settings_.restarts)
                         : std::string("restart, not counted against the limit");
  }
  out.emplace_back(Note{"fault", fault.what + (verdict.empty() ? "" : "; " + verdict)});
  out.emplace_back(ReportToJob{Speaker(fault),
                               ReportText(fault) + (verdict.empty() ? "" : "muster:   " + verdict + "\n")});
  if (giving_up_) {
    const bool own = fault.from_member && !fault.exit.supervisor_lost && fault.exit.status != 0;
    out.emplace_back(Note{"failed", "the gang has ended"});
    Finish(false, own ? std::optional(fault.task) : std::nullopt, own ? std::nullopt : std::optional(1), out);
    return;
  }
  ++restarts_;
  fault_.reset();
  StartNext(out);
}

// Whose supervisor tells the job of a fault: the one that it is about, or else the first that is there.
uint32_t Gang::Speaker(const Fault& fault) const {
  if (fault.from_member && !fault.exit.supervisor_lost) return fault.task;
  for (uint32_t task = 0; task < members_.size(); ++task) {
    const Member& member = members_[task];
    const bool lost = member.exit && member.exit->supervisor_lost;
    if (member.known && !lost && nodes_[member.node].present) return task;
  }
  return 0;
}

std::string Gang::ReportText(const Fault& fault) const {
  std::string text = !began_ ? fmt::format("muster: gang {} cannot start: {}\n", settings_.id, fault.what)
                             : fmt::format("muster: gang {}: generation {} ended: {}\n", settings_.id,
                                           generation_, fault.what);
  if (fault.exit.oom_killed)
    text += "muster:   Slurm will call this step OUT_OF_MEMORY even if it goes on well\n";
  if (fault.exit.stderr_tail.empty()) return text;
  // The last lines only, each bounded: this goes to a terminal.
  std::vector<std::string> lines;
  size_t from = 0;
  while (from < fault.exit.stderr_tail.size()) {
    const size_t end = std::min(fault.exit.stderr_tail.find('\n', from), fault.exit.stderr_tail.size());
    if (end > from) lines.push_back(fault.exit.stderr_tail.substr(from, std::min<size_t>(end - from, 500)));
    from = end + 1;
  }
  text += "muster:   the last lines of its stderr:\n";
  for (size_t i = lines.size() > 10 ? lines.size() - 10 : 0; i < lines.size(); ++i) {
    text += "muster:   | " + lines[i] + "\n";
  }
  return text;
}

void Gang::Finish(bool succeeded, std::optional<uint32_t> cause, std::optional<int> code, Actions& out) {
  state_ = State::kFinished;
  succeeded_ = succeeded;
  finish_cause_ = cause;
  finish_code_ = code;
  for (const Timer timer : {Timer::kJoin, Timer::kReconnect, Timer::kProgress})
    out.emplace_back(SetTimer{timer, -1});
  OrderFinish(PresentNodes(), out);
  out.emplace_back(Persist{});
}

void Gang::OrderFinish(std::vector<uint32_t> nodes, Actions& out) const {
  out.emplace_back(FinishGang{succeeded_, finish_cause_, finish_code_, std::move(nodes)});
}

// ---- the rest
// ----------------------------------------------------------------------------------------------------

void Gang::On(const Terminating& event, Actions& out) {
  if (terminating_ || state_ == State::kFinished) return;
  terminating_ = true;
  out.emplace_back(
      Note{"terminating", fmt::format("Slurm sent {}: no new generation", SignalName(event.signal))});
  out.emplace_back(TellMembers{true, true});
  if (state_ == State::kJoining) {
    out.emplace_back(Note{"terminated", "Slurm ended the job before all nodes were here"});
    Finish(false, std::nullopt, std::nullopt, out);
  } else if (state_ == State::kStopping) {
    giving_up_ = true;
    WhenStopped(out);
  } else {
    MaybeAllExited(out);
  }
}

void Gang::On(const Progressed& event, Actions& /*out*/) {
  if (event.step <= max_step_) return;
  max_step_ = event.step;
  MadeProgress();
}

void Gang::On(const CheckpointCommitted& event, Actions& out) {
  On(Progressed{event.step}, out);
}

void Gang::MadeProgress() {
  restarts_without_progress_ = 0;
}

void Gang::On(const CheckpointBad& event, Actions& out) {
  if (event.generation != generation_ || (state_ != State::kStarting && state_ != State::kRunning)) return;
  out.emplace_back(RejectCheckpoint{event.step, event.reason});
  const Member& member = event.task < members_.size() ? members_[event.task] : members_.front();
  Fail(Fault{.what = fmt::format(
                 "rank {} on {}: the checkpoint of step {} does not verify: {}; going back to the one "
                 "before",
                 event.task, nodes_[member.node].name, event.step, event.reason),
             .task = event.task,
             .user = false},
       out);
}

void Gang::On(const TimerFired& event, Actions& out) {
  switch (event.timer) {
    case Timer::kJoin:
      if (state_ != State::kJoining && state_ != State::kRecovering) return;
      GiveUp(fmt::format("after {} s these have not joined: {}", settings_.join_timeout_ms / 1000, Missing()),
             out);
      break;
    case Timer::kReconnect:
      if (state_ == State::kFinished || AllPresent()) return;
      fault_ = Fault{.what = fmt::format("after {} s these are still not connected: {}",
                                         settings_.reconnect_ms / 1000, Missing()),
                     .user = false};
      GiveUp(fault_->what, out);
      break;
    case Timer::kProgress:
      MadeProgress();
      break;
  }
}

std::vector<uint32_t> Gang::PresentNodes() const {
  std::vector<uint32_t> present;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].present) present.push_back(i);
  }
  return present;
}

bool Gang::AllPresent() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.present; });
}

bool Gang::AllStopped(bool present_only) const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [&](const Node& n) { return n.stopped || (present_only && !n.present); });
}

std::string Gang::Missing() const {
  std::string text;
  uint32_t unnamed = 0;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].present) continue;
    if (nodes_[i].name.empty()) {
      ++unnamed;
      text += fmt::format("{}node {} of the step", text.empty() ? "" : ", ", i);
    } else {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", nodes_[i].name);
    }
    if (text.size() > 400) return text + ", …";
  }
  return text;
}

}  // namespace muster::gang
