#include "tests/sim/host.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/planted.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {

using gang::MemberState;

Host::Host(Simulation& simulation, uint32_t index, size_t tasks)
    : supervisors(tasks),
      sim_(simulation),
      world_(simulation.world),
      index_(index),
      offset_(simulation.world.Pick(1, 1'000'000) * kMs) {}

Host::~Host() = default;

Nanos Host::Local() const {
  return world_.now() + offset_;
}

bool Host::Frozen() const {
  return world_.now() < frozen_until_;
}

bool Host::JustWoken() const {
  return frozen_until_ != 0 && world_.now() < frozen_until_ + 100 * kMs;
}

bool Host::AllGone() const {
  return std::none_of(supervisors.begin(), supervisors.end(), [](const Supervisor& s) { return s.alive; });
}

void Host::Hurt(Nanos length) {
  hurt_at_ = std::max(hurt_at_, world_.now() + length);
}

void Host::Later(Nanos delay, World::Task task) {
  world_.After(delay, [this, task = std::move(task)] {
    if (crashed_) return;
    if (Frozen()) return Later(frozen_until_ - world_.now() + world_.Pick(0, 10) * kMs, task);
    task();
  });
}

// ---- members

void Host::StartMember(size_t local, const Order& order) {
  Supervisor& s = supervisors[local];
  const bool idle = s.state == MemberState::kWaiting || s.state == MemberState::kStopped;
  if (!s.alive || !idle || order.generation <= s.generation) return;
  if (s.processes && !s.unkillable)
    return world_.Fail(Invariant::kOneGeneration, "a supervisor is to start a program beside another");
  const uint64_t incarnation = s.incarnation + 1;
  s = Supervisor{};
  s.processes = s.executing = true;
  s.state = MemberState::kRunning;
  s.generation = order.generation;
  s.term = order.term;
  s.content = order.content;
  s.incarnation = incarnation;
  s.rank = order.rank;
  // Half of them save what they start from once more, as a program does that saves before it makes a step.
  s.step = order.from ? *order.from + order.generation % 2 : 1;
  s.from = order.from;
  world_.Log("n{}.{}: generation {} starts as rank {}", index_, local, order.generation, order.rank);
  sim_.invariants.MemberStarts(*this, s);
  Later(world_.Pick(1, 20) * kMs, [this, local, incarnation] {
    if (supervisors[local].incarnation == incarnation) Executed(local);
  });
}

void Host::Executed(size_t local) {
  Supervisor& s = supervisors[local];
  if (!s.alive || s.state != MemberState::kRunning || !s.executing) return;
  s.executed = true;
  if (daemon_) daemon_->SupervisorExecuted(local, s);
  Train(local);
}

// A program that saves a step, waits until it is committed, and goes on; when the faults are over it comes to its end.
void Host::Train(size_t local) {
  const uint64_t incarnation = supervisors[local].incarnation;
  Later(world_.Pick(250, 500) * kMs, [this, local, incarnation] {
    Supervisor& s = supervisors[local];
    if (s.incarnation != incarnation || !s.executing || s.state != MemberState::kRunning) return;
    if (sim_.calm && sim_.world.Chance(0.5)) return EndProgram(local, 0);
    if (!s.saving) {
      s.saving = true;
      sim_.invariants.Saved(s.generation, s.step, s.rank);
      if (daemon_) daemon_->Save(local, s.generation, s.step);
    }
    Train(local);
  });
}

void Host::TellCommitted(size_t local, uint64_t generation, uint64_t step, bool good) {
  Supervisor& s = supervisors[local];
  if (s.generation != generation || s.step != step || !s.saving || s.state != MemberState::kRunning) return;
  if (good && s.executing) sim_.invariants.ToldCommitted(generation, step);
  s.saving = false;
  ++s.step;
  if (!good) world_.Log("n{}.{}: step {} was not saved", index_, local, step);
}

void Host::EndProgram(size_t local, int status) {
  Supervisor& s = supervisors[local];
  if (!s.alive || s.state != MemberState::kRunning || !s.executing) return;
  if (s.last_words) return Sweep(local);
  world_.Log("n{}.{}: the program of generation {} ends with {}", index_, local, s.generation, status);
  sim_.invariants.Cause(s.generation);
  s.state = MemberState::kExited;
  s.executing = false;
  s.exit = gang::Exit{.status = status, .pid = 1, .time_ns = world_.now() + 1};
  if (daemon_) daemon_->SupervisorExited(local, s);
}

void Host::StopMember(size_t local, uint64_t generation, bool last_words) {
  Supervisor& s = supervisors[local];
  if (!s.alive || generation < s.generation) return;
  if (s.executing && !s.last_words) sim_.invariants.MemberStopped(s);
  s.stop_asked = true;
  if (!last_words || !s.executing || !s.executed) return Sweep(local);
  if (std::exchange(s.last_words, true)) return;
  world_.Log("n{}.{}: generation {} has last words", index_, local, s.generation);
  Later(world_.Pick(1, sim_.options.gang.last_words_ms) * kMs, [this, local, incarnation = s.incarnation] {
    if (supervisors[local].incarnation == incarnation && supervisors[local].last_words) Sweep(local);
  });
}

void Host::FinishMember(size_t local) {
  Supervisor& s = supervisors[local];
  if (!s.alive) return;
  world_.Log("n{}.{}: leaves", index_, local);
  sim_.invariants.Cause(s.generation);
  s.alive = s.executing = s.processes = false;
  ++s.incarnation;
  if (daemon_) daemon_->SupervisorClosed(local);
}

// SIGKILL to all below it, at once; that they have gone is seen a moment later.
void Host::Sweep(size_t local) {
  Supervisor& s = supervisors[local];
  s.executing = s.last_words = false;
  const bool slow = slow_kill && world_.Chance(0.2);
  s.unkillable |= s.processes && may_be_unkillable && world_.Chance(0.3);
  const Nanos takes =
      s.unkillable ? sim_.options.sweep : (slow ? world_.Pick(100, 2'500) : world_.Pick(1, 15)) * kMs;
  Later(takes, [this, local, incarnation = s.incarnation] { Swept(local, incarnation); });
  if (!s.stop_asked || !s.processes || takes <= sim_.options.exiting) return;
  Later(sim_.options.exiting, [this, local, incarnation = s.incarnation] {
    Supervisor& still = supervisors[local];
    if (still.incarnation != incarnation || still.state == MemberState::kStopped) return;
    world_.Log("n{}.{}: what is left of generation {} exits", index_, local, still.generation);
    still.exiting = true;
    if (daemon_) daemon_->SupervisorExiting(local, still);
  });
}

void Host::Swept(size_t local, uint64_t incarnation) {
  Supervisor& s = supervisors[local];
  if (s.incarnation != incarnation) return;
  if (!s.unkillable) s.processes = false;
  s.exiting = false;
  if (!s.exit) s.exit = gang::Exit{.status = SIGKILL};
  if (s.state != MemberState::kWaiting) s.state = MemberState::kStopped;
  if (daemon_) daemon_->SupervisorStopped(local, s);
}

void Host::KillSupervisor(size_t local) {
  Supervisor& s = supervisors[local];
  if (!s.alive) return;
  world_.Log("n{}.{}: the supervisor is killed", index_, local);
  sim_.invariants.Cause(s.generation);
  s.alive = s.executing = false;
  s.stop_asked = true;
  ++s.incarnation;
  if (daemon_) daemon_->SupervisorClosed(local);
  Sweep(local);  // musterd kills what is left, if anything
}

// ---- the lease, as the supervisors see it

Nanos Host::LeaseEnd() const {
  return connected_ ? std::min(beaten_ + sim_.options.times.lease, unleased_until_) : unleased_until_;
}

void Host::BeatSupervisors(bool leased) {
  beaten_ = world_.now();
  if (leased) unleased_until_ = lease::kNever;
  if (check_at_ > LeaseEnd()) CheckLease();
}

void Host::CheckLease() {
  check_at_ = std::max(LeaseEnd(), world_.now() + kMs);
  Later(check_at_ - world_.now(), [this, at = check_at_] {
    if (check_at_ != at) return;
    check_at_ = lease::kNever;
    if (world_.now() >= LeaseEnd() && !MUSTER_PLANTED(no_fencing)) {
      for (size_t i = 0; i < supervisors.size(); ++i) {
        Supervisor& s = supervisors[i];
        if (!s.alive || (s.state != MemberState::kRunning && s.state != MemberState::kExited)) continue;
        if (s.executing) world_.Log("n{}.{}: musterd is silent: fenced", index_, i);
        sim_.invariants.Cause(s.generation);
        Sweep(i);
      }
    }
    const bool any = std::any_of(supervisors.begin(), supervisors.end(), [](const Supervisor& s) {
      return s.alive && s.state == MemberState::kRunning && s.executing;
    });
    if (any || LeaseEnd() > world_.now()) CheckLease();
  });
}

// ---- what happens to it

void Host::Crash() {
  if (crashed_) return;
  world_.Log("n{} crashes", index_);
  crashed_ = true;
  Hurt();
  daemon_.reset();
  for (const Supervisor& s : supervisors) sim_.invariants.Cause(s.generation);
  for (Supervisor& s : supervisors) s = Supervisor{.alive = false, .incarnation = s.incarnation + 1};
  sim_.network.Unresponsive(index_, [] { return true; });
}

void Host::Freeze(Nanos length) {
  if (crashed_ || Frozen()) return;
  world_.Log("n{} is frozen for {} ms", index_, length / kMs);
  frozen_until_ = world_.now() + length;
  Hurt(length);
  MaybeHidden();
  if (daemon_) daemon_->Pause(length);
  sim_.network.Unresponsive(index_, [this] { return Frozen(); });
}

void Host::PauseDaemon(Nanos length) {
  if (crashed_ || !daemon_) return;
  world_.Log("n{}'s musterd is stopped for {} ms", index_, length / kMs);
  Hurt(length);
  daemon_->Pause(length);
  sim_.network.Unresponsive(index_, [this] { return daemon_ && daemon_->Paused(); });
}

void Host::StallLoop(Nanos length) {
  if (crashed_ || !daemon_) return;
  world_.Log("n{}'s main loop is busy for {} ms", index_, length / kMs);
  Hurt(length);
  daemon_->StallLoop(length);
}

void Host::KillDaemon() {
  if (crashed_ || !daemon_) return;
  world_.Log("n{}'s musterd is killed", index_);
  Hurt();
  daemon_.reset();
  connected_ = false;
  unleased_until_ = std::min(unleased_until_, world_.now() + sim_.options.times.reconnect);
  sim_.network.ProcessEnded(index_);
  MaybeHidden();
  MaybeUnled();
  // A coordinator that goes before its next acks has told nobody.
  world_.After(2 * sim_.options.times.beat, [this] { MaybeUnled(); });
}

void Host::MaybeUnled() {
  unled_ |= saved.coordinator != index_ && std::none_of(sim_.hosts.begin(), sim_.hosts.end(),
                                                        [](const auto& host) { return host->Leads(); });
}

bool Host::Leads() const {
  return daemon_ && daemon_->lead() != nullptr && !Frozen() && !daemon_->Paused();
}

void Host::MaybeHidden() {
  if (crashed_ || (daemon_ && unleased_until_ == lease::kNever)) return;
  bool seen = !Frozen();
  for (const auto& other : sim_.hosts) seen &= sim_.network.Joined(index_, other->index());
  hidden_ |= !seen;
}

void Host::StartDaemon() {
  if (crashed_ || daemon_ || Frozen() || sim_.job_over) return;
  world_.Log("n{}'s musterd starts", index_);
  if (hurt_at_ >= 0) Hurt();
  daemon_ = std::make_unique<Daemon>(sim_, *this);
  Later(world_.Pick(2, 100) * kMs, [this] {
    if (!daemon_ || connected_) return;
    connected_ = true;
    BeatSupervisors(false);  // its welcome counts
    daemon_->SupervisorsConnect();
  });
}

void Host::Terminate() {
  if (crashed_) return;
  for (size_t i = 0; i < supervisors.size(); ++i) {
    if (!supervisors[i].alive) continue;
    if (daemon_) daemon_->SupervisorSignalled(i);
    const int status = world_.Chance(0.5) ? 0 : SIGTERM;
    Later(world_.Pick(100, 900) * kMs, [this, i, status] { EndProgram(i, status); });
  }
}

void Host::EndJob() {
  if (crashed_) return;
  for (size_t i = 0; i < supervisors.size(); ++i) {
    supervisors[i].processes = false;
    KillSupervisor(i);
  }
}

}  // namespace muster::sim
