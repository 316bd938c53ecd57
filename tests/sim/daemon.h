// musterd's process on one host: what its beat thread does (daemon/beat), and its main loop, which runs the agent's
// part (LocalGang) and perhaps the coordinator.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/lease/agent_lease.h"
#include "daemon/lease/coordinator_lease.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/host.h"
#include "tests/sim/local_gang.h"
#include "tests/sim/network.h"

namespace muster::sim {

class Daemon {
 public:
  Daemon(Simulation& simulation, Host& host);
  ~Daemon();

  // The main loop: now if it is free, and not at all when the process has ended.
  void Post(Nanos delay, World::Task task);
  void Run(const World::Task& task);
  // For what comes from elsewhere and must not outlive the process.
  [[nodiscard]] std::weak_ptr<int> alive() const { return alive_; }

  // ---- the supervisors' socket
  void SupervisorsConnect();
  void SupervisorExecuted(size_t local, const Supervisor& says);
  void SupervisorExited(size_t local, const Supervisor& says);
  void SupervisorExiting(size_t local, const Supervisor& says);
  void SupervisorStopped(size_t local, const Supervisor& says);
  void SupervisorClosed(size_t local);
  void SupervisorSignalled(size_t local);
  void Save(size_t local, uint64_t generation, uint64_t step);

  // ---- the beat thread
  void Receive(uint32_t from, const lease::Datagram& datagram);
  // `keyed`: it has the gang's key from the process before it.
  void Attend(lease::AgentSettings settings, bool keyed);
  // As Attendance::MayStart: now, whatever has been posted to the main loop so far.
  [[nodiscard]] bool MayStart() const { return agent_ && host.Local() < start_until_; }
  void EndAttendance() { agent_.reset(); }
  [[nodiscard]] bool Attending() const { return agent_.has_value(); }
  void Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses, lease::Source source);
  void SetStopped(uint64_t generation);
  void Claimed(uint64_t term, bool ok);
  void Fenced();
  void Lead(const lease::LeadSettings& settings);
  void EndLead() { lead_.reset(); }
  [[nodiscard]] lease::CoordinatorLease* lead() { return lead_ ? &*lead_ : nullptr; }
  // After the main loop has told one of the machines something.
  void Pump(lease::Output* out);
  void Schedule();

  // ---- coordinators
  // The one of this daemon, made if need be; null: not here.
  Coordinator* CoordinatorFor(const Register& registration, std::optional<uint32_t>* elsewhere);
  void TakeOver(Coordinator::Origin origin);
  void Accept(const std::shared_ptr<Link>& link);
  [[nodiscard]] Coordinator* coordinator() { return coordinator_.get(); }
  void ForgetCoordinator(const Coordinator* which);

  // ---- faults
  void Pause(Nanos length);
  void StallLoop(Nanos length);
  [[nodiscard]] bool Paused() const;

  Simulation& sim;
  Host& host;
  World& world;
  LocalGang local;

 private:
  void Wake();
  void Handle(uint32_t from, const lease::Datagram& datagram);
  void Carry(lease::Output* out, uint32_t came_from);
  void Go();  // the main loop, after a pause

  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  std::optional<lease::AgentLease> agent_;
  bool keyed_ = false;  // the agent can read the gang's datagrams
  std::optional<lease::CoordinatorLease> lead_;
  std::unique_ptr<Coordinator> coordinator_;
  Nanos paused_until_ = 0;
  Nanos stalled_until_ = 0;
  std::vector<World::Task> backlog_;
  std::vector<std::pair<uint32_t, lease::Datagram>> inbox_;
  Nanos next_wake_ = lease::kNever;
  Nanos beaten_ = 0;
  Nanos run_until_ = 0;
  Nanos start_until_ = 0;
};

}  // namespace muster::sim
