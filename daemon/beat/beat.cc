#include "daemon/beat/beat.h"

#include <fcntl.h>

#include <utility>

#include "daemon/beat/page.h"
#include "daemon/beat/thread.h"

namespace muster {
namespace {

lease::NodeIndex Index(uint32_t node) {
  return node < lease::kNoNode ? static_cast<lease::NodeIndex>(node) : lease::kNoNode;
}

}  // namespace

Beat::Beat(std::shared_ptr<BeatThread> thread) : thread_(std::move(thread)) {}

Result<std::unique_ptr<Beat>> Beat::Start(BeatOptions options) {
  if (!options.clock) options.clock = BeatClock::OfThisHost();
  if (!options.socket) {
    auto socket = BeatSocket::OpenUdp(options.listen_address, options.port);
    if (!socket) return socket.error();
    options.socket = *std::move(socket);
  }
  auto state = StateFile::Open(options.state_path, options.clock->Now());
  if (!state) return state.error();
  auto thread = std::make_shared<BeatThread>(std::move(options), *std::move(state));
  thread->Start();
  return std::unique_ptr<Beat>(new Beat(std::move(thread)));
}

Beat::~Beat() {
  thread_->Stop();
}

void Beat::LoopAlive() {
  thread_->LoopAlive();
}

uint16_t Beat::port() const {
  return thread_->port();
}

lease::Nanos Beat::last_alive() const {
  return thread_->last_alive();
}

const std::shared_ptr<BeatClock>& Beat::clock() const {
  return thread_->clock();
}

lease::Nanos Beat::Now() const {
  return clock()->Now();
}

std::unique_ptr<Attendance> Beat::Attend(AttendOptions options, AgentEvents events) {
  auto shared = std::make_shared<AgentEvents>(std::move(events));
  auto view = std::make_shared<AgentView>();
  auto page = BeatPage::Make();
  const uint64_t id = next_id_++;
  thread_->Do([id, options = std::move(options), weak = std::weak_ptr(shared), view,
               page](BeatThread& thread) { thread.AddAgent(id, options, weak, view, page); });
  return std::unique_ptr<Attendance>(
      new Attendance(thread_, id, std::move(shared), std::move(view), std::move(page)));
}

std::unique_ptr<Leadership> Beat::Lead(LeadOptions options, LeadEvents events) {
  auto shared = std::make_shared<LeadEvents>(std::move(events));
  const uint64_t id = next_id_++;
  thread_->Do([id, options = std::move(options), weak = std::weak_ptr(shared)](BeatThread& thread) {
    thread.AddLead(id, options, weak);
  });
  return std::unique_ptr<Leadership>(new Leadership(thread_, id, std::move(shared)));
}

// ---- this node's part in a gang

Attendance::Attendance(std::shared_ptr<BeatThread> thread, uint64_t id, std::shared_ptr<AgentEvents> events,
                       std::shared_ptr<AgentView> view, std::shared_ptr<BeatPage> page)
    : thread_(std::move(thread)),
      id_(id),
      events_(std::move(events)),
      view_(std::move(view)),
      page_(std::move(page)) {}

Attendance::~Attendance() {
  thread_->Do([id = id_](BeatThread& thread) { thread.RemoveAgent(id); });
}

void Attendance::Follow(uint64_t term, uint32_t coordinator, const std::string& key,
                        const lease::WitnessSet& witnesses, lease::Source source) {
  thread_->Do([id = id_, term, coordinator, key, witnesses, source](BeatThread& thread) {
    thread.Follow(id, term, coordinator, key, witnesses, source);
  });
}

void Attendance::SetAddresses(std::vector<BeatAddress> addresses) {
  thread_->Do([id = id_, addresses = std::move(addresses)](BeatThread& thread) {
    thread.SetAddresses(id, addresses);
  });
}

void Attendance::SetStopped(uint64_t generation) {
  thread_->Do([id = id_, generation](BeatThread& thread) {
    thread.WithAgent(
        id, [generation](lease::AgentLease& machine, lease::Nanos) { machine.SetStopped(generation); });
  });
}

void Attendance::Claimed(uint64_t term, bool ok) {
  thread_->Do([id = id_, term, ok](BeatThread& thread) {
    thread.WithAgent(
        id, [term, ok](lease::AgentLease& machine, lease::Nanos now) { machine.Claimed(term, ok, now); });
  });
}

bool Attendance::MayStart() const {
  return thread_->clock()->Now() < view_->start_until;
}

uint64_t Attendance::AddSupervisor(int fd) {
  const uint64_t number = next_supervisor_++;
  auto copy = std::make_shared<UniqueFd>(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy->valid()) return number;
  thread_->Do([id = id_, number, copy](BeatThread& thread) { thread.AddSupervisor(id, number, copy); });
  return number;
}

void Attendance::RemoveSupervisor(uint64_t number) {
  thread_->Do([id = id_, number](BeatThread& thread) { thread.RemoveSupervisor(id, number); });
}

int Attendance::page() const {
  return page_ ? page_->fd() : -1;
}

void Attendance::SupervisorReadsPage(uint64_t number) {
  thread_->Do([id = id_, number](BeatThread& thread) { thread.SupervisorReadsPage(id, number); });
}

// ---- the lead of a gang

Leadership::Leadership(std::shared_ptr<BeatThread> thread, uint64_t id, std::shared_ptr<LeadEvents> events)
    : thread_(std::move(thread)), id_(id), events_(std::move(events)) {}

Leadership::~Leadership() {
  thread_->Do([id = id_](BeatThread& thread) { thread.RemoveLead(id); });
}

void Leadership::SetStop(uint64_t generation) {
  thread_->Do([id = id_, generation](BeatThread& thread) {
    thread.WithLead(id, [generation](lease::CoordinatorLease& machine, lease::Nanos, lease::Output*) {
      machine.SetStop(generation);
    });
  });
}

void Leadership::NodeAttached(uint32_t node) {
  thread_->Do([id = id_, node](BeatThread& thread) {
    thread.WithLead(id, [node](lease::CoordinatorLease& machine, lease::Nanos now, lease::Output*) {
      machine.NodeAttached(Index(node), now);
    });
  });
}

void Leadership::NodeClosed(uint32_t node) {
  thread_->Do([id = id_, node](BeatThread& thread) {
    thread.WithLead(id, [node](lease::CoordinatorLease& machine, lease::Nanos now, lease::Output*) {
      machine.NodeClosed(Index(node), now);
    });
  });
}

void Leadership::NodeRemoved(uint32_t node) {
  thread_->Do([id = id_, node](BeatThread& thread) {
    thread.WithLead(id, [node](lease::CoordinatorLease& machine, lease::Nanos, lease::Output*) {
      machine.NodeRemoved(Index(node));
    });
  });
}

void Leadership::SetAddress(uint32_t node, const BeatAddress& address) {
  thread_->Do([id = id_, node, address](BeatThread& thread) { thread.SetAddress(id, node, address); });
}

void Leadership::StoreConfirmed(lease::Nanos at) {
  thread_->Do([id = id_, at](BeatThread& thread) {
    thread.WithLead(id, [at](lease::CoordinatorLease& machine, lease::Nanos now, lease::Output* out) {
      machine.StoreConfirmed(at, now, out);
    });
  });
}

void Leadership::Depose(uint64_t term) {
  thread_->Do([id = id_, term](BeatThread& thread) {
    thread.WithLead(id, [term](lease::CoordinatorLease& machine, lease::Nanos, lease::Output* out) {
      machine.Depose(term, out);
    });
  });
}

}  // namespace muster
