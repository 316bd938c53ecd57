// The gangs of Beat's thread: who is there, what the owner says of them, and what it is told.
#include <algorithm>
#include <ctime>
#include <utility>

#include "daemon/beat/thread.h"
#include "wire/wire.h"

namespace muster {
namespace {

// Above all that earlier processes of this host have numbered.
uint64_t FirstSequence() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

template <typename List>
auto* Find(const List& list, uint64_t id) {
  const auto found = std::find_if(list.begin(), list.end(), [id](const auto& one) { return one->id == id; });
  return found == list.end() ? nullptr : found->get();
}

template <typename List>
void Remove(List* list, uint64_t id) {
  std::erase_if(*list, [id](const auto& one) { return one->id == id; });
}

}  // namespace

BeatThread::Agent* BeatThread::FindAgent(uint64_t id) {
  return Find(agents_, id);
}

BeatThread::Lead* BeatThread::FindLead(uint64_t id) {
  return Find(leads_, id);
}

// ---- agents

void BeatThread::AddAgent(uint64_t id, const AttendOptions& options, std::weak_ptr<AgentEvents> events,
                          std::shared_ptr<AgentView> view, std::shared_ptr<BeatPage> page) {
  auto agent = std::make_unique<Agent>();
  agent->id = id;
  agent->gang = lease::GangTag(options.gang);
  agent->self = static_cast<lease::NodeIndex>(options.self);
  agent->addresses = options.addresses;
  if (!options.key.empty()) agent->keys.emplace_back(options.key);
  agent->events = std::move(events);
  agent->view = std::move(view);
  agent->page = std::move(page);
  agent->promised = state_->Promised(agent->gang);
  lease::AgentSettings settings;
  settings.times = options_.times;
  settings.gang = agent->gang;
  settings.self = agent->self;
  settings.candidates = options.candidates;
  settings.first_sequence = FirstSequence();
  settings.promised = agent->promised;
  settings.grace_until = options.grace_until;
  agent->machine.emplace(std::move(settings));
  agents_.push_back(std::move(agent));
  WithAgent(id, [&](lease::AgentLease& machine, lease::Nanos now) {
    machine.Follow(options.term, static_cast<lease::NodeIndex>(options.coordinator), options.witnesses,
                   lease::Source::kLink, now, &output_);
  });
}

void BeatThread::RemoveAgent(uint64_t id) {
  Remove(&agents_, id);
}

void BeatThread::WithAgent(uint64_t id, const std::function<void(lease::AgentLease&, lease::Nanos)>& what) {
  Agent* agent = FindAgent(id);
  if (agent == nullptr) return;
  const lease::Nanos now = clock_.Now();
  what(*agent->machine, now);
  Carry(*agent, now, {}, {});
}

void BeatThread::Follow(uint64_t id, uint64_t term, uint32_t coordinator, const std::string& key,
                        const lease::WitnessSet& witnesses, lease::Source source) {
  Agent* agent = FindAgent(id);
  if (agent == nullptr || term < agent->machine->term()) return;
  const lease::Authenticator fresh(key);
  if (agent->keys.empty() || !(agent->keys.front() == fresh)) {
    agent->keys.insert(agent->keys.begin(), fresh);
    if (agent->keys.size() > 2) agent->keys.pop_back();
  }
  WithAgent(id, [&](lease::AgentLease& machine, lease::Nanos now) {
    machine.Follow(term, static_cast<lease::NodeIndex>(coordinator), witnesses, source, now, &output_);
  });
}

void BeatThread::SetAddresses(uint64_t id, const std::vector<BeatAddress>& addresses) {
  if (Agent* agent = FindAgent(id)) agent->addresses = addresses;
}

void BeatThread::AddSupervisor(uint64_t id, uint64_t number, std::shared_ptr<UniqueFd> fd) {
  Agent* agent = FindAgent(id);
  if (agent == nullptr) return;
  agent->supervisors.push_back({number, std::move(*fd), false});
  agent->beaten = 0;
  Carry(*agent, clock_.Now(), {}, {});
}

void BeatThread::RemoveSupervisor(uint64_t id, uint64_t number) {
  Agent* agent = FindAgent(id);
  if (agent == nullptr) return;
  std::erase_if(agent->supervisors, [number](const Supervisor& one) { return one.number == number; });
}

void BeatThread::SupervisorReadsPage(uint64_t id, uint64_t number) {
  Agent* agent = FindAgent(id);
  if (agent == nullptr) return;
  for (Supervisor& supervisor : agent->supervisors) {
    if (supervisor.number == number) supervisor.reads_page = agent->page != nullptr;
  }
}

void BeatThread::BeatSupervisors(Agent& agent, lease::Nanos now) {
  agent.beaten = now;
  const bool leased = agent.machine->Leased();
  if (agent.page) agent.page->Beat(leased);
  wire::Beat beat{};
  beat.leased = leased ? 1 : 0;
  wire::SetHeader(&beat, wire::Type::kBeat);
  for (const Supervisor& supervisor : agent.supervisors) {
    if (supervisor.reads_page) continue;
    // One that is gone or does not read is its owner's business.
    [[maybe_unused]] const ssize_t n =
        ::send(supervisor.fd.get(), &beat, sizeof beat, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void BeatThread::PostEvent(const Agent& agent, const lease::Event& event) {
  options_.mailbox->Post([weak = agent.events, event, closed = agent.machine->closed(),
                          thread = weak_from_this(), id = agent.id] {
    const auto events = weak.lock();
    if (!events) return;
    const auto call = [](const auto& function, const auto&... arguments) {
      if (function) function(arguments...);
    };
    switch (event.kind) {
      case lease::EventKind::kAttended:
        return call(events->attended, event.term);
      case lease::EventKind::kFence:
        call(events->fence);
        if (const auto beats = thread.lock()) {
          beats->Do([id](BeatThread& self) {
            self.WithAgent(id, [](lease::AgentLease& machine, lease::Nanos) { machine.Fenced(); });
          });
        }
        return;
      case lease::EventKind::kAbandoned:
        return call(events->abandoned, event.term);
      case lease::EventKind::kClaim:
        return call(events->claim, event.term);
      case lease::EventKind::kTakeOver:
        return call(events->take_over, event.term, closed);
      case lease::EventKind::kSuccessor:
        return call(events->successor, event.term, event.node);
      case lease::EventKind::kStopOrdered:
        return call(events->stop_ordered, event.term, event.generation);
      default:
        return;
    }
  });
}

// ---- leads

void BeatThread::AddLead(uint64_t id, const LeadOptions& options, std::weak_ptr<LeadEvents> events) {
  auto lead = std::make_unique<Lead>();
  lead->id = id;
  lead->gang = lease::GangTag(options.gang);
  lead->self = options.lease.self;
  lead->addresses = options.addresses;
  lead->keys.emplace_back(options.key);
  lead->events = std::move(events);
  lease::LeadSettings settings = options.lease;
  settings.times = options_.times;
  settings.gang = lead->gang;
  settings.nodes = options.addresses.size();
  settings.first_sequence = FirstSequence();
  lead->machine.emplace(std::move(settings), clock_.Now());
  leads_.push_back(std::move(lead));
}

void BeatThread::RemoveLead(uint64_t id) {
  Remove(&leads_, id);
}

void BeatThread::WithLead(
    uint64_t id, const std::function<void(lease::CoordinatorLease&, lease::Nanos, lease::Output*)>& what) {
  Lead* lead = FindLead(id);
  if (lead == nullptr) return;
  what(*lead->machine, clock_.Now(), &output_);
  Carry(*lead, {});
}

void BeatThread::SetAddress(uint64_t id, uint32_t node, const BeatAddress& address) {
  Lead* lead = FindLead(id);
  if (lead != nullptr && node < lead->addresses.size()) lead->addresses[node] = address;
}

void BeatThread::PostEvent(const Lead& lead, const lease::Event& event) {
  options_.mailbox->Post([weak = lead.events, event] {
    const auto events = weak.lock();
    if (!events) return;
    const auto call = [](const auto& function, const auto&... arguments) {
      if (function) function(arguments...);
    };
    switch (event.kind) {
      case lease::EventKind::kHeard:
        return call(events->heard, event.node);
      case lease::EventKind::kSilent:
        return call(events->silent, event.node);
      case lease::EventKind::kStopped:
        return call(events->stopped, event.node, event.generation);
      case lease::EventKind::kLostQuorum:
        return call(events->lost_quorum);
      case lease::EventKind::kQuorum:
        return call(events->quorum);
      case lease::EventKind::kConfirmInStore:
        return call(events->confirm_in_store);
      case lease::EventKind::kTermSpent:
        return call(events->term_spent);
      case lease::EventKind::kDeposed:
        return call(events->deposed, event.term);
      default:
        return;
    }
  });
}

}  // namespace muster
