#include "tests/unit/daemon/gang_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace muster::gang {

template <typename... Args>
void Simulation::Trace(const char* format, const Args&... args) {
  if (tracing_) trace_ += fmt::format(fmt::runtime(format), args...) + "\n";
}

Simulation::Simulation(uint64_t seed, bool trace) : random_(seed), tracing_(trace) {
  const uint32_t nodes = 1 + Below(4);
  per_node_ = 1 + Below(3);
  settings_.id = "1.0";
  settings_.node_count = nodes;
  settings_.task_count = nodes * per_node_;
  settings_.restarts = Below(20);
  agents_.resize(nodes);
  for (Agent& agent : agents_) {
    agent.supervisors.resize(per_node_);
    agent.members.resize(per_node_);
  }
  Trace("{} nodes with {} tasks each, {} restarts", nodes, per_node_, settings_.restarts);
}

uint32_t Simulation::Below(uint32_t bound) {
  return static_cast<uint32_t>(random_() % bound);
}

void Simulation::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
  Trace("FAILED: {}", what);
}

// ---- the coordinator

// A coordinator begins, from the newest record that has become durable.
void Simulation::Boot() {
  const size_t lost = std::min<size_t>(records_.size() - durable_, Below(3));
  records_.resize(records_.size() - lost);
  durable_ = records_.size();
  const Record record = records_.empty() ? Record{} : records_.back();
  std::fill(std::begin(timers_), std::end(timers_), false);
  ended_ = false;
  end_ = record.end;
  Trace("a coordinator begins: generation {}, running {}, finished {}", record.generation, record.running,
        record.end.has_value());
  gang_.emplace(settings_, record.generation, record.user_faults, record.running);
  if (!end_) Carry(gang_->Begin());
}

void Simulation::Feed(const Event& event) {
  if (end_) {
    if (const auto* joined = std::get_if<NodeJoined>(&event)) Order({joined->node}, *end_);
    return;
  }
  Carry(gang_->Handle(event));
}

void Simulation::Carry(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* start = std::get_if<StartGeneration>(&action)) {
      Trace("  -> start {} on {}", start->generation, fmt::join(start->nodes, " "));
      if (ended_) Fail("a generation is started after the end");
      generations_ = std::max(generations_, start->generation);
      for (const Agent& agent : agents_) {
        for (const Supervisor& supervisor : agent.supervisors) {
          if (supervisor.processes && supervisor.generation < start->generation)
            Fail(fmt::format("generation {} is started while processes of {} are there", start->generation,
                             supervisor.generation));
        }
      }
      Order(start->nodes, *start);
    } else if (const auto* stop = std::get_if<StopGeneration>(&action)) {
      Trace("  -> stop {} on {}", stop->generation, fmt::join(stop->nodes, " "));
      Order(stop->nodes, *stop);
    } else if (const auto* finish = std::get_if<FinishGang>(&action)) {
      Trace("  -> finish, succeeded {}, on {}", finish->succeeded, fmt::join(finish->nodes, " "));
      ended_ = true;
      Order(finish->nodes, *finish);
    } else if (const auto* timer = std::get_if<SetTimer>(&action)) {
      timers_[static_cast<size_t>(timer->timer)] = timer->ms >= 0;
    } else if (std::holds_alternative<Persist>(action)) {
      Record record{gang_->generation(), gang_->user_faults(), gang_->state() != State::kJoining, {}};
      if (gang_->state() == State::kFinished) {
        record.end = FinishGang{gang_->succeeded(), gang_->finish_cause(), gang_->finish_code(), {}};
      }
      records_.push_back(record);
    } else if (const auto* note = std::get_if<Note>(&action)) {
      Trace("  {}: {}", note->kind, note->text);
    }
  }
}

void Simulation::Order(const std::vector<uint32_t>& nodes, const Down& message) {
  for (const uint32_t node : nodes) {
    if (agents_[node].attached) agents_[node].down.push_back(message);
  }
}

// ---- the nodes

void Simulation::Link(uint32_t node) {
  Agent& agent = agents_[node];
  Trace("node {} links", node);
  agent.linked = true;
  NodeJoined joined{.node = node, .name = fmt::format("n{}", node), .lease_port = 20000};
  for (uint32_t i = 0; i < per_node_; ++i) {
    const Agent::Member& member = agent.members[i];
    joined.members.push_back({.task = TaskOf(node, i),
                              .local_id = i,
                              .state = member.state,
                              .generation = member.generation,
                              .unkillable = member.unkillable,
                              .exit = member.exit});
  }
  agent.up.emplace_back(joined);
}

// What is on its way is lost.
void Simulation::CutLink(uint32_t node) {
  Agent& agent = agents_[node];
  if (!agent.linked) return;
  Trace("node {}'s link breaks, {} messages up and {} down are lost", node, agent.up.size(),
        agent.down.size());
  agent.linked = false;
  agent.up.clear();
  agent.down.clear();
  if (std::exchange(agent.attached, false)) Feed(NodeLeft{node});
}

// What a node said reaches the coordinator, a registration now and then twice.
void Simulation::Hear(uint32_t node) {
  Agent& agent = agents_[node];
  const Event event = std::move(agent.up.front());
  agent.up.pop_front();
  const bool joined = std::holds_alternative<NodeJoined>(event);
  if (joined) Trace("node {} registers", node);
  agent.attached |= joined;
  Feed(event);
  if (joined && Chance(5)) Feed(event);
}

void Simulation::Say(uint32_t node, Event event) {
  if (agents_[node].linked) agents_[node].up.push_back(std::move(event));
}

// What a coordinator ordered reaches a node.
void Simulation::Deliver(uint32_t node) {
  Agent& agent = agents_[node];
  const Down message = std::move(agent.down.front());
  agent.down.pop_front();
  if (const auto* start = std::get_if<StartGeneration>(&message)) {
    Trace("node {} hears start {}", node, start->generation);
    if (agent.finished || start->generation <= agent.stop_generation) return;
    for (uint32_t i = 0; i < per_node_; ++i) StartMember(node, i, start->generation);
  } else if (const auto* stop = std::get_if<StopGeneration>(&message)) {
    Trace("node {} hears stop {}", node, stop->generation);
    if (stop->generation < agent.stop_generation) return;
    agent.stop_generation = stop->generation;
    agent.said_stopped.reset();
    for (uint32_t i = 0; i < per_node_; ++i) {
      const MemberState state = agent.members[i].state;
      if (state == MemberState::kRunning || state == MemberState::kExited)
        agent.supervisors[i].stop_asked = true;
    }
    MaybeStopped(node);
  } else {
    Trace("node {} hears finish", node);
    agent.finished = true;
    for (Supervisor& supervisor : agent.supervisors) {
      supervisor.alive = false;
      supervisor.processes = false;
    }
    MaybeGone(node);
  }
}

void Simulation::StartMember(uint32_t node, uint32_t local, uint64_t generation) {
  Agent::Member& member = agents_[node].members[local];
  Supervisor& supervisor = agents_[node].supervisors[local];
  if (!supervisor.alive || member.generation >= generation) return;
  if (supervisor.processes) return Fail("a supervisor is to start a program beside another");
  for (const Agent& other : agents_) {
    for (const Supervisor& s : other.supervisors) {
      if (s.processes && s.generation != generation)
        Fail(fmt::format("a member of generation {} starts while one of {} runs", generation, s.generation));
    }
  }
  supervisor = Supervisor{.processes = true, .state = MemberState::kRunning, .generation = generation};
  member = {MemberState::kRunning, generation, 0, {}};
}

// Nothing of the member is left, or what is left cannot be killed.
void Simulation::Swept(uint32_t node, uint32_t local) {
  Supervisor& supervisor = agents_[node].supervisors[local];
  supervisor.stop_asked = false;
  Agent::Member& member = agents_[node].members[local];
  if (Chance(1)) {
    supervisor.unkillable = true;
    supervisor.state = MemberState::kExited;
    member.unkillable = 1;
  } else {
    supervisor.processes = false;
    supervisor.state = MemberState::kStopped;
  }
  member.state = MemberState::kStopped;
  if (member.generation > agents_[node].stop_generation && !member.exit) {
    member.exit = Exit{.status = SIGKILL};
    Say(node, MemberExited{TaskOf(node, local), member.generation, *member.exit});
  }
  Trace("task {} is stopped, unkillable {}", TaskOf(node, local), member.unkillable);
  MaybeStopped(node);
}

void Simulation::MaybeStopped(uint32_t node) {
  Agent& agent = agents_[node];
  if (agent.stop_generation == 0 || agent.said_stopped == agent.stop_generation) return;
  uint32_t unkillable = 0;
  for (const Agent::Member& member : agent.members) {
    if (member.generation > agent.stop_generation) return;
    if (member.state != MemberState::kStopped && member.state != MemberState::kWaiting) return;
    unkillable += member.unkillable;
  }
  agent.said_stopped = agent.stop_generation;
  Say(node, NodeStopped{node, agent.stop_generation, 20000, unkillable});
}

void Simulation::Execute(uint32_t node, uint32_t local) {
  Supervisor& supervisor = agents_[node].supervisors[local];
  supervisor.executed = true;
  Say(node, MemberExecuted{TaskOf(node, local), supervisor.generation, ++now_ns_});
}

void Simulation::End(uint32_t node, uint32_t local, int status) {
  Supervisor& supervisor = agents_[node].supervisors[local];
  Trace("task {} ends with {}", TaskOf(node, local), status);
  supervisor.state = MemberState::kExited;
  supervisor.exit = Exit{.status = status, .time_ns = ++now_ns_};
  agents_[node].members[local].state = MemberState::kExited;
  agents_[node].members[local].exit = supervisor.exit;
  Say(node, MemberExited{TaskOf(node, local), supervisor.generation, *supervisor.exit});
}

void Simulation::LoseSupervisor(uint32_t node, uint32_t local) {
  Agent& agent = agents_[node];
  Trace("task {}'s supervisor is killed", TaskOf(node, local));
  agent.supervisors[local].alive = false;
  agent.supervisors[local].processes = false;
  Agent::Member& member = agent.members[local];
  member.state = MemberState::kStopped;
  if (!member.exit) member.exit = Exit{.status = SIGKILL};
  member.exit->supervisor_lost = true;
  Say(node, MemberExited{TaskOf(node, local), member.generation, *member.exit});
  MaybeStopped(node);
  MaybeGone(node);
}

void Simulation::MaybeGone(uint32_t node) {
  Agent& agent = agents_[node];
  agent.gone = std::none_of(agent.supervisors.begin(), agent.supervisors.end(),
                            [](const Supervisor& s) { return s.alive; });
}

// musterd is killed and started again: it knows what the supervisors tell.
void Simulation::RestartAgent(uint32_t node) {
  Trace("node {}'s musterd restarts", node);
  CutLink(node);
  Agent& agent = agents_[node];
  agent.stop_generation = 0;
  agent.said_stopped.reset();
  for (uint32_t i = 0; i < per_node_; ++i) UpdateMember(node, i);
}

void Simulation::UpdateMember(uint32_t node, uint32_t local) {
  const Supervisor& supervisor = agents_[node].supervisors[local];
  Agent::Member& member = agents_[node].members[local];
  if (!supervisor.alive) {
    member = {MemberState::kStopped, 0, 0, Exit{.supervisor_lost = true}};
    return;
  }
  member = {supervisor.state, supervisor.generation, 0, {}};
  if (member.state == MemberState::kExited || member.state == MemberState::kStopped) {
    member.exit = Exit{.status = supervisor.exit ? supervisor.exit->status : SIGKILL};
  }
}

// ---- schedules

void Simulation::FireOneTimer() {
  for (const Timer timer : {Timer::kReconnect, Timer::kJoin}) {
    if (!timers_[static_cast<size_t>(timer)]) continue;
    Trace("timer {} fires", static_cast<int>(timer));
    timers_[static_cast<size_t>(timer)] = false;
    return Feed(TimerFired{timer});
  }
}

// Delivers, links and ends what there is, and lets no fault happen.
bool Simulation::Calm() {
  for (uint32_t node = 0; node < agents_.size(); ++node) {
    Agent& agent = agents_[node];
    if (!agent.up.empty()) {
      Hear(node);
      return true;
    }
    if (agent.linked && agent.gone) return CutLink(node), true;
    if (!agent.down.empty()) return Deliver(node), true;
    if (!agent.linked && !agent.gone) return Link(node), true;
    for (uint32_t i = 0; i < per_node_; ++i) {
      Supervisor& supervisor = agent.supervisors[i];
      if (!supervisor.alive || !supervisor.processes) continue;
      if (supervisor.stop_asked) return Swept(node, i), true;
      if (supervisor.state != MemberState::kRunning) continue;
      if (!supervisor.executed) return Execute(node, i), true;
      return End(node, i, 0), true;
    }
  }
  return false;
}

void Simulation::Chaos() {
  const uint32_t node = Below(static_cast<uint32_t>(agents_.size()));
  const uint32_t local = Below(per_node_);
  Agent& agent = agents_[node];
  Supervisor& supervisor = agent.supervisors[local];
  const uint32_t dice = Below(1000);
  if (dice < 300) {
    if (agent.up.empty()) return;
    Hear(node);
  } else if (dice < 600) {
    if (!agent.down.empty()) Deliver(node);
  } else if (dice < 700) {
    if (!agent.linked && !agent.gone) Link(node);
  } else if (dice < 800) {
    if (supervisor.alive && supervisor.processes && !supervisor.executed) Execute(node, local);
  } else if (dice < 900) {
    if (supervisor.alive && supervisor.stop_asked) Swept(node, local);
  } else if (dice < 940) {
    if (!supervisor.alive || supervisor.state != MemberState::kRunning || supervisor.stop_asked) return;
    End(node, local, Chance(30) ? 0 : SIGSEGV);
  } else if (dice < 960) {
    CutLink(node);
  } else if (dice < 970) {
    if (!agent.finished) RestartAgent(node);
  } else if (dice < 980) {
    for (uint32_t n = 0; n < agents_.size(); ++n) CutLink(n);
    Boot();
  } else if (dice < 985) {
    if (Chance(10)) FireOneTimer();
  } else if (dice < 988) {
    if (Chance(20) && supervisor.alive) LoseSupervisor(node, local);
  } else if (dice < 990) {
    if (Chance(10)) Say(node, Terminating{TaskOf(node, local), SIGTERM});
  } else if (dice < 995) {
    Say(node, Progressed{gang_->max_step() + 1});
  } else {
    Say(node, CheckpointBad{TaskOf(node, local), supervisor.generation, 5, "bad"});
  }
}

std::string Simulation::Run() {
  Boot();
  const uint32_t steps = 100 + Below(900);
  for (uint32_t i = 0; i < steps && failure_.empty(); ++i) Chaos();
  Trace("faults stop");
  for (uint32_t i = 0; i < 100'000 && failure_.empty(); ++i) {
    if (Calm()) continue;
    if (end_ || gang_->state() == State::kFinished) break;
    if (std::none_of(std::begin(timers_), std::end(timers_), [](bool set) { return set; })) {
      Fail(fmt::format("the gang is {} and nothing will ever happen", ToString(gang_->state())));
    }
    const State before = gang_->state();
    FireOneTimer();
    if (gang_->state() == before && !Calm() && gang_->state() != State::kFinished) {
      Fail(fmt::format("the gang stays {} though all timers have fired", ToString(before)));
    }
  }
  if (!end_ && gang_->state() != State::kFinished) Fail("the gang does not end");
  for (uint32_t node = 0; node < agents_.size(); ++node) {
    if (!agents_[node].gone) Fail(fmt::format("node {} was not told of the end", node));
  }
  return failure_;
}

}  // namespace muster::gang
