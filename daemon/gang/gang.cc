#include "daemon/gang/gang.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/planted.h"

namespace muster::gang {

const char* ToString(State state) {
  switch (state) {
    case State::kJoining:
      return "joining";
    case State::kTesting:
      return "testing";
    case State::kRecovering:
      return "recovering";
    case State::kStarting:
      return "starting";
    case State::kRunning:
      return "running";
    case State::kStopping:
      return "stopping";
    case State::kRequeueing:
      return "requeueing";
    case State::kFinished:
      return "finished";
  }
  return "unknown";
}

RestartCounts NoRestarts() {
  RestartCounts none{{"planned", 0}};
  for (const CauseClass cause :
       {CauseClass::kUser, CauseClass::kInfrastructure, CauseClass::kPreemption, CauseClass::kTimeLimit}) {
    none[ToString(cause)] = 0;
  }
  return none;
}

Gang::Gang(Settings settings, const Memory& memory)
    : settings_(std::move(settings)),
      state_(memory.requeueing ? State::kRequeueing
             : memory.running  ? State::kRecovering
                               : State::kJoining),
      generation_(memory.generation),
      placed_(memory.placed),
      nodes_(settings_.node_count),
      members_(settings_.task_count),
      active_(memory.active),
      before_(memory.before),
      user_fault_times_(memory.user_fault_times),
      progress_since_user_fault_(memory.progress_since_user_fault),
      restarts_(memory.restarts),
      restarts_without_progress_(memory.restarts_without_progress),
      max_step_(memory.max_step),
      began_(memory.running),
      inherited_(memory.running),
      terminating_(memory.terminating),
      next_(memory.succeeding ? Next::kSucceed : Next::kRestart),
      last_signature_(memory.last_signature) {
  for (size_t i = 0; i < nodes_.size() && i < settings_.node_names.size(); ++i) {
    nodes_[i].name = settings_.node_names[i];
  }
  requeue_for_ = memory.warned;
  no_time_ = memory.warned.has_value();
  why_unknown_ = memory.terminating && !memory.warned;
  if (settings_.order_by_topology) {
    settings_.node_switches.resize(nodes_.size());
    auto tree = SwitchTree::Of(settings_.node_switches, settings_.node_names);
    if (tree) {
      tree_ = *std::move(tree);
    } else {
      no_tree_ = tree.error().message;
    }
  }
  const auto outside = [&](uint32_t node) { return node >= nodes_.size(); };
  std::erase_if(active_, outside);
  std::erase_if(before_, outside);
  for (const uint32_t node : memory.lost) {
    if (!outside(node)) nodes_[node].lost = true;
  }
  for (const uint32_t node : memory.ended) {
    if (!outside(node)) nodes_[node].ended = true;
  }
  for (const auto& [node, why] : memory.excluded) {
    if (!outside(node)) nodes_[node].excluded = why;
  }
  for (const auto& [node, why] : memory.draining) {
    if (!outside(node)) nodes_[node].draining = why;
  }
  for (const uint32_t node : memory.away) {
    if (!outside(node)) nodes_[node].joined = true;
  }
  for (uint32_t node = 0; node < nodes_.size() && node < memory.task_counts.size(); ++node) {
    nodes_[node].task_count = memory.task_counts[node];
  }
}

Memory Gang::Remember() const {
  Memory memory;
  memory.generation = generation_;
  memory.running = state_ == State::kTesting || (state_ != State::kJoining && began_);
  memory.user_fault_times = user_fault_times_;
  memory.progress_since_user_fault = progress_since_user_fault_;
  if (charged_user_ > 0 && !MUSTER_PLANTED(fault_charged_again)) {
    memory.user_fault_times.pop_back();
    memory.progress_since_user_fault |= progress_before_charge_;
  }
  memory.restarts = restarts_;
  memory.restarts_without_progress =
      restarts_without_progress_ - std::min(charged_, restarts_without_progress_);
  memory.max_step = max_step_;
  memory.last_signature = last_signature_;
  memory.active = active_;
  const auto exits = [this](uint32_t node) { return nodes_[node].exiting > 0; };
  // A coordinator that recovers keeps what the record says of the nodes before: another coordinator may take over before all nodes register.
  const bool recovers = state_ == State::kRecovering && !before_.empty();
  if (recovers || (state_ == State::kStarting && std::any_of(before_.begin(), before_.end(), exits))) {
    memory.before = before_;
    memory.placed = recovers ? placed_ : generation_;
  }
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].lost) memory.lost.push_back(node);
    if (nodes_[node].ended) memory.ended.push_back(node);
    if (nodes_[node].joined && !nodes_[node].present && !nodes_[node].lost) memory.away.push_back(node);
    if (!nodes_[node].excluded.empty()) memory.excluded.emplace_back(node, nodes_[node].excluded);
    if (!nodes_[node].draining.empty()) memory.draining.emplace_back(node, nodes_[node].draining);
    memory.task_counts.push_back(nodes_[node].task_count);
  }
  memory.succeeding = next_ == Next::kSucceed;
  std::tie(memory.terminating, memory.warned) = EndForRecord();
  return memory;
}

std::vector<Action> Gang::Begin() {
  Actions out;
  // Who coordinated before may have been waiting for a node that is not coming: the leases say so here too.
  if (state_ == State::kJoining) out.emplace_back(SetTimer{Timer::kJoin, settings_.join_timeout_ms});
  out.emplace_back(Persist{});
  // Slurm is asked for the requeue when it is known where the job's script runs.
  if (state_ == State::kRequeueing) {
    out.emplace_back(SetTimer{Timer::kRequeue, kRequeueTimeoutMs});
    return out;
  }
  // How much time the signal leaves is not known before Slurm has been asked, and may never be.
  if (Warned()) out.emplace_back(SetTimer{Timer::kGrace, settings_.grace_ms});
  out.emplace_back(Note{"joining", fmt::format("waiting for {} tasks on {} nodes", settings_.task_count,
                                               settings_.node_count)});
  return out;
}

std::vector<Action> Gang::SayAgain() const {
  Actions out;
  std::vector<uint32_t> nodes = PresentNodes();
  if (state_ == State::kRunning || state_ == State::kStarting) {
    std::erase_if(nodes, [this](uint32_t node) { return !nodes_[node].started; });
    out.emplace_back(StartGeneration{generation_, std::move(nodes), false});
    // And what an older generation has left is to be told of when it has gone.
    std::vector<uint32_t> others = PresentNodes();
    std::erase_if(others, [this](uint32_t node) { return IsActive(node) || nodes_[node].stopped; });
    if (!others.empty()) out.emplace_back(StopGeneration{generation_, std::move(others), true});
  } else if (state_ == State::kFinished) {
    OrderFinish(std::move(nodes), out);
  }
  return out;
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

void Gang::On(const TimerFired& event, Actions& out) {
  switch (event.timer) {
    case Timer::kJoin:
      return JoinTimedOut(out);
    case Timer::kProgress:
      return MadeProgress();
    case Timer::kGrace:
      return GraceOver(out);
    case Timer::kTest:
      return TestTimedOut(out);
    case Timer::kRecover:
      return Stranded(out);
    case Timer::kExiting:
      return WhenStopped(out, true);
    case Timer::kRequeue:
      return On(RequeueFailed{fmt::format("Slurm has not requeued it within {} s", kRequeueTimeoutMs / 1000)},
                out);
  }
}

void Gang::On(const Progressed& event, Actions& /*out*/) {
  if (event.step <= max_step_) return;
  max_step_ = event.step;
  MadeProgress();
}

void Gang::MadeProgress() {
  restarts_without_progress_ = 0;
  progress_since_user_fault_ = true;
  last_signature_.clear();
}

const Role& Gang::RoleOf(uint32_t node) const {
  return settings_.roles[RoleIndex(node)];
}

bool Gang::IsActive(uint32_t node) const {
  return std::find(active_.begin(), active_.end(), node) != active_.end();
}

bool Gang::IsSpare(uint32_t node) const {
  return node < nodes_.size() && !IsActive(node) && Usable(node, Free::kNow);
}

}  // namespace muster::gang
