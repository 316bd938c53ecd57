#include "tests/sim/daemon.h"

#include <algorithm>
#include <utility>

#include "tests/sim/simulation.h"

namespace muster::sim {

Daemon::Daemon(Simulation& simulation, Host& host_)
    : sim(simulation), host(host_), world(simulation.world), local(*this, host_.saved) {}

Daemon::~Daemon() {
  if (agent_) host.saved.promised = std::max(host.saved.promised, agent_->promised());
}

// ---- the main loop

void Daemon::Post(Nanos delay, World::Task task) {
  world.After(delay, [this, alive = alive(), task = std::move(task)] {
    if (!alive.expired()) Run(task);
  });
}

void Daemon::Run(const World::Task& task) {
  if (world.now() < std::max(paused_until_, stalled_until_)) {
    backlog_.push_back(task);
  } else {
    task();
  }
}

bool Daemon::Paused() const {
  return world.now() < paused_until_;
}

void Daemon::Pause(Nanos length) {
  paused_until_ = std::max(paused_until_, world.now() + length);
  world.After(length, [this, alive = alive()] {
    if (alive.expired() || Paused()) return;
    Wake();
    Go();
  });
}

void Daemon::StallLoop(Nanos length) {
  stalled_until_ = std::max(stalled_until_, world.now() + length);
  world.After(length, [this, alive = alive()] {
    if (!alive.expired()) Go();
  });
}

void Daemon::Go() {
  if (world.now() < std::max(paused_until_, stalled_until_)) return;
  const auto backlog = std::exchange(backlog_, {});
  const auto alive = alive_;
  for (const World::Task& task : backlog) {
    task();
    if (alive.use_count() == 1) return;  // the process has ended
  }
}

// ---- the supervisors' socket

void Daemon::SupervisorsConnect() {
  Run([this] { local.SupervisorsConnect(); });
}
void Daemon::SupervisorExecuted(size_t task, const Supervisor& says) {
  Post(50'000, [this, task, says] { local.SupervisorExecuted(task, says); });
}
void Daemon::SupervisorExited(size_t task, const Supervisor& says) {
  Post(50'000, [this, task, says] { local.SupervisorExited(task, says); });
}
void Daemon::SupervisorExiting(size_t task, const Supervisor& says) {
  Post(50'000, [this, task, says] { local.SupervisorExiting(task, says); });
}
void Daemon::SupervisorStopped(size_t task, const Supervisor& says) {
  Post(50'000, [this, task, says] { local.SupervisorStopped(task, says); });
}
void Daemon::SupervisorClosed(size_t task) {
  Post(50'000, [this, task] { local.SupervisorClosed(task); });
}
void Daemon::SupervisorSignalled(size_t task) {
  Post(50'000, [this, task] { local.SupervisorSignalled(task); });
}
void Daemon::Save(size_t task, uint64_t generation, uint64_t step) {
  Post(world.Pick(1, 30) * kMs, [this, task, generation, step] { local.Saved(task, generation, step); });
}

// ---- the beat thread

void Daemon::Attend(lease::AgentSettings settings, bool keyed) {
  agent_.emplace(std::move(settings));
  keyed_ = keyed;
  lease::Output out;
  Pump(&out);
}

void Daemon::Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
                    lease::Source source) {
  if (!agent_) return;
  keyed_ = true;
  lease::Output out;
  agent_->Follow(term, static_cast<lease::NodeIndex>(coordinator), witnesses, source, host.Local(), &out);
  Pump(&out);
}

void Daemon::SetStopped(uint64_t generation) {
  if (!agent_) return;
  agent_->SetStopped(generation);
  lease::Output out;
  Pump(&out);
}

void Daemon::Claimed(uint64_t term, bool ok) {
  if (agent_) agent_->Claimed(term, ok, host.Local());
}

void Daemon::Fenced() {
  if (agent_) agent_->Fenced();
}

void Daemon::Lead(const lease::LeadSettings& settings) {
  lead_.emplace(settings, host.Local());
  Wake();
}

void Daemon::Receive(uint32_t from, const lease::Datagram& datagram) {
  if (Paused()) {
    if (inbox_.size() < 200) inbox_.emplace_back(from, datagram);
    return;
  }
  Handle(from, datagram);
  Schedule();
}

void Daemon::Handle(uint32_t from, const lease::Datagram& datagram) {
  lease::Output out;
  const bool reports = datagram.type == lease::Type::kBeat || datagram.type == lease::Type::kSpent;
  if (lead_ && (reports || datagram.term > lead_->term())) lead_->Receive(datagram, host.Local(), &out);
  if (agent_ && keyed_ && (!lead_ || !reports)) agent_->Receive(datagram, host.Local(), &out);
  Carry(&out, from);
}

void Daemon::Schedule() {
  Nanos next = agent_ ? agent_->NextTick() : lease::kNever;
  if (lead_) next = std::min(next, lead_->NextTick());
  if (next == lease::kNever) return;
  const Nanos in = std::max<Nanos>(next - host.Local(), kMs / 2);
  const Nanos at = world.now() + in;
  if (next_wake_ > world.now() && next_wake_ <= at) return;
  next_wake_ = at;
  world.After(in, [this, alive = alive(), at] {
    if (alive.expired() || next_wake_ != at) return;
    next_wake_ = lease::kNever;
    Wake();
  });
}

void Daemon::Wake() {
  if (Paused()) return;
  // A process that goes on may notice the time first, or what has come.
  const bool time_first = inbox_.empty() || world.Chance(0.5);
  const auto tick = [&] {
    lease::Output out;
    if (agent_) agent_->Tick(host.Local(), &out);
    if (lead_) lead_->Tick(host.Local(), &out);
    Carry(&out, host.index());
  };
  if (time_first) tick();
  for (const auto& [from, datagram] : std::exchange(inbox_, {})) Handle(from, datagram);
  if (!time_first) tick();
  Schedule();
}

void Daemon::Pump(lease::Output* out) {
  Carry(out, host.index());
  Schedule();
}

void Daemon::Carry(lease::Output* out, uint32_t came_from) {
  if (agent_) {
    host.saved.promised = std::max(host.saved.promised, agent_->promised());
    host.saved.last_alive = host.Local();
    const bool renewed = agent_->RunUntil() > run_until_;
    run_until_ = agent_->RunUntil();
    const lease::Times& times = sim.options.times;
    start_until_ = agent_->MayRun(host.Local()) ? run_until_ - times.lease + times.Freshness() : 0;
    if ((renewed || world.now() >= beaten_ + sim.options.times.beat) &&
        agent_->MayBeatSupervisors(host.Local())) {
      beaten_ = world.now();
      host.BeatSupervisors(agent_->Leased());
    }
  }
  for (const lease::Send& send : out->sends) {
    sim.network.Post(host.index(), send.to, send.datagram);
    if (send.back && came_from != host.index() && came_from != send.to)
      sim.network.Post(host.index(), came_from, send.datagram);
  }
  for (const lease::Event& event : std::exchange(out->events, {})) {
    sim.coverage.Lease(event.kind);
    Post(100'000, [this, event, closed = agent_ ? agent_->closed() : lease::WitnessSet()] {  // in order
      if (event.kind < lease::EventKind::kHeard) {
        local.OnLease(event, closed);
      } else if (coordinator_) {
        coordinator_->OnLease(event);
      }
    });
  }
}

// ---- coordinators

Coordinator* Daemon::CoordinatorFor(const Register& registration, std::optional<uint32_t>* elsewhere) {
  if (coordinator_) return coordinator_.get();
  const bool newer =
      local.term() > registration.term || (local.attended() && local.term() == registration.term);
  const bool better = newer && local.coordinator() != host.index();
  if (registration.coordinator != host.index() || better) {
    if (better) *elsewhere = local.coordinator();
    return nullptr;
  }
  Coordinator::Origin origin;
  origin.known_term = registration.term;
  origin.taken = [this](bool taken) {
    if (taken) local.CoordinatedHere();
  };
  origin.fresh = registration.term == 0 &&
                 std::all_of(registration.members.begin(), registration.members.end(),
                             [](const gang::MemberInfo& member) { return member.generation == 0; });
  coordinator_ = std::make_unique<Coordinator>(*this, std::move(origin));
  coordinator_->Begin();
  return coordinator_.get();
}

void Daemon::TakeOver(Coordinator::Origin origin) {
  if (coordinator_) return origin.taken(false);
  coordinator_ = std::make_unique<Coordinator>(*this, std::move(origin));
  coordinator_->Begin();
}

void Daemon::ForgetCoordinator(const Coordinator* which) {
  if (coordinator_.get() == which) coordinator_.reset();
}

void Daemon::Accept(const std::shared_ptr<Link>& link) {
  Link::End& end = link->ends[kCoordinatorEnd];
  end.open = true;
  const std::weak_ptr<Link> weak = link;
  const uint32_t node = link->ends[kAgentEnd].host;
  end.message = [this, alive = alive(), weak, node](Message message) {
    if (alive.expired()) return;
    Run([this, weak, node, message = std::get<AgentMessage>(std::move(message))] {
      const auto up = weak.lock();
      if (!up) return;
      if (const auto* registration = std::get_if<Register>(&message)) {
        std::optional<uint32_t> elsewhere;
        if (Coordinator* coordinator = CoordinatorFor(*registration, &elsewhere)) {
          return coordinator->Attached(node, up, *registration);
        }
        return up->Send(kCoordinatorEnd, CoordinatorMessage{0, Elsewhere{elsewhere}});
      }
      if (coordinator_) coordinator_->Hear(node, up.get(), message);
    });
  };
  end.closed = [this, alive = alive(), weak, node] {
    if (alive.expired()) return;
    Run([this, weak, node] {
      const auto up = weak.lock();
      if (coordinator_ && up) coordinator_->Detached(node, up.get());
    });
  };
}

}  // namespace muster::sim
