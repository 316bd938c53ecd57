// One node: its tasks' supervisors and programs with the rules of spank-plugin/, and the daemon while there is one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/gang/events.h"
#include "daemon/lease/types.h"
#include "tests/sim/messages.h"
#include "tests/sim/world.h"

namespace muster::sim {

class Daemon;
class Simulation;

struct Supervisor {
  bool alive = true;
  bool processes = false;   // of `generation`; dead ones are there until they have been reaped
  bool executing = false;   // and SIGKILL has not been sent yet
  bool executed = false;    // the program's exec has been seen
  bool last_words = false;  // it is being stopped, and has time for that
  bool stop_asked = false;
  bool exiting = false;  // it has said so: SIGKILL has ended `processes`, which are slow to go
  bool unkillable = false;
  gang::MemberState state = gang::MemberState::kWaiting;
  uint64_t generation = 0;
  uint64_t term = 0;     // of the coordinator that had it started
  uint64_t content = 0;  // Start::content
  std::optional<gang::Exit> exit;
  uint64_t incarnation = 0;  // what was planned for an earlier program does not happen to this one
  // The program: trains, and saves each step.
  uint32_t rank = 0;
  uint64_t step = 0;
  std::optional<uint64_t> from;  // the step that its generation started from
  bool saving = false;
};

class Host {
 public:
  Host(Simulation& simulation, uint32_t index, size_t tasks);
  ~Host();

  // Orders of this node's daemon.
  struct Order {
    uint64_t generation = 0;
    uint64_t term = 0;
    uint64_t content = 0;
    uint32_t rank = 0;
    std::optional<uint64_t> from;  // the step of the checkpoint
  };
  void StartMember(size_t local, const Order& order);
  void StopMember(size_t local, uint64_t generation, bool last_words);
  void FinishMember(size_t local);
  void TellCommitted(size_t local, uint64_t generation, uint64_t step, bool good);
  void BeatSupervisors(bool leased);  // kBeat

  // What happens to it.
  void Crash();
  void Freeze(Nanos length);  // the whole machine; its clock goes on
  void KillDaemon();
  void StartDaemon();
  void PauseDaemon(Nanos length);  // SIGSTOP
  void StallLoop(Nanos length);    // the daemon's main loop only; beats go on
  void EndProgram(size_t local, int status);
  void KillSupervisor(size_t local);
  void Terminate();  // Slurm's SIGTERM to each task
  void EndJob();     // and its SIGKILL

  // When something happens here, unless the machine is dead; later, if it is frozen.
  void Later(Nanos delay, World::Task task);

  [[nodiscard]] bool crashed() const { return crashed_; }
  [[nodiscard]] bool Frozen() const;
  // musterd has died where nobody could hear it, or the host is out of reach before another has a lease: its supervisors wait for
  // `reconnect`, and no coordinator can know that: README.md.
  [[nodiscard]] bool Hidden() const { return hidden_; }
  // It has died while no coordinator could hear it and tell others: a successor that takes over because its coordinator is dead
  // cannot know that.
  [[nodiscard]] bool Unled() const { return unled_; }
  void Attended() { hidden_ = unled_ = false; }
  void MaybeHidden();
  void MaybeUnled();
  // It has just been woken: its members run until it has noticed what time it is.
  [[nodiscard]] bool JustWoken() const;
  [[nodiscard]] Daemon* daemon() const { return daemon_.get(); }
  [[nodiscard]] bool Leads() const;
  [[nodiscard]] bool AllGone() const;  // no supervisor is left
  [[nodiscard]] Nanos Local() const;   // this host's clock
  // A fault touches it, until `length` from now.
  void Hurt(Nanos length = 0);
  [[nodiscard]] Nanos hurt_at() const { return hurt_at_; }  // the last time; -1: never
  [[nodiscard]] uint32_t index() const { return index_; }

  std::vector<Supervisor> supervisors;
  bool may_be_unkillable = false;  // for a while: what is killed may hang in the kernel
  bool slow_kill = false;

  // On disk (tmpfs), for the daemon's next process.
  struct Saved {
    uint64_t started_generation = 0;
    std::optional<uint64_t> started_restore;
    std::optional<gang::CheckpointBad> checkpoint_bad;
    bool known = false;  // a gang is here
    uint32_t coordinator = 0;
    uint64_t term = 0;
    uint64_t promised = 0;
    Nanos last_alive = 0;  // local time
  } saved;
  uint64_t obeyed_term = 0;  // for the invariant

 private:
  void Executed(size_t local);
  void Train(size_t local);
  void Sweep(size_t local);
  void Swept(size_t local, uint64_t incarnation);
  void CheckLease();
  [[nodiscard]] Nanos LeaseEnd() const;

  Simulation& sim_;
  World& world_;
  uint32_t index_;
  Nanos offset_;
  bool crashed_ = false;
  Nanos frozen_until_ = 0;
  std::unique_ptr<Daemon> daemon_;
  bool connected_ = false;  // supervisors to the daemon
  Nanos beaten_ = 0;
  Nanos unleased_until_ =
      lease::kNever;  // musterd has gone, or is back without a lease: members run on until then
  Nanos check_at_ = lease::kNever;
  bool hidden_ = false;
  bool unled_ = false;
  Nanos hurt_at_ = -1;
};

}  // namespace muster::sim
