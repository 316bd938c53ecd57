// Carries out what the product's CoordinatorCore decides. Links, store, Slurm and the lease machine's thread are the simulation's.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/coordinator/core.h"
#include "daemon/coordinator/take_over.h"
#include "daemon/gang/gang.h"
#include "daemon/lease/coordinator_lease.h"
#include "tests/sim/messages.h"
#include "tests/sim/network.h"
#include "tests/sim/store.h"

namespace muster::sim {

class Daemon;

class Coordinator : private CoordinatorCore::Shell,
                    private CoordinatorCore::RecordShell,
                    private CoordinatorCore::SlurmShell,
                    private CoordinatorCore::SaveShell,
                    private CoordinatorCore::LeaseShell {
 public:
  struct Origin : TakeOver::Origin {
    lease::WitnessSet closed;  // with `promised`: nodes whose musterd had gone
    std::function<void(bool)> taken = [](bool) {};
  };
  Coordinator(Daemon& daemon, Origin origin);
  ~Coordinator() override;

  void Begin() { TryTakeOver(); }
  void Attached(uint32_t node, const std::shared_ptr<Link>& link, const Register& registration);
  void Detached(uint32_t node, const Link* link);
  void Hear(uint32_t node, const Link* link, const AgentMessage& message);
  void OnLease(const lease::Event& event);
  void Feed(const gang::Event& event) { core_.Feed(event); }

  [[nodiscard]] bool Leads() const { return core_.active(); }
  [[nodiscard]] const gang::Gang& gang() const { return core_.gang(); }
  // What the current generation started from.
  [[nodiscard]] std::optional<uint64_t> restore() const { return core_.starts().from(); }
  [[nodiscard]] uint64_t term() const { return core_.fence().term(); }

 private:
  // One operation of a worker thread: calls `done` when the next one may begin.
  using Work = std::function<void(std::function<void()> done)>;
  struct Thread {
    std::deque<Work> queue;
    bool working = false;
  };
  struct Advance {
    Fence from;
    Fence to;
    std::shared_ptr<const GangRecord> record;
    std::optional<std::shared_ptr<const GangRecord>> seen = {};  // that it was made from
    bool unknown = false;  // whether an earlier try may have been carried out
  };

  // ---- what the core orders
  [[nodiscard]] Nanos Now() const override;
  void Do(const gang::TestLinks& action) override;
  void Do(const gang::ReportToJob& /*action*/) override {}
  void Do(const gang::Note& action) override;
  void Do(const gang::TellMembers& action) override;
  void Do(const gang::SetTimer& action) override;
  void Do(const gang::LoseNode& action) override;
  void Do(const gang::DrainInSlurm& /*action*/) override {}
  void Handled(const gang::Event& event, gang::State before,
               const std::vector<gang::Action>& actions) override;
  void Fed(gang::State before, uint64_t generation) override;
  void WriteRecord(const RecordFence::Advance& advance) override;
  void WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) override;
  void FindSuccessor(const std::string& why) override;
  void AskTerm() override;
  void MarkBad(const gang::RejectCheckpoint& bad, bool later) override;
  void BuildStart(const Starts::Prepared& prepared) override;
  void SendStart(const std::set<uint32_t>& nodes) override;
  void SendStop(const gang::StopGeneration& action) override;
  void BuildFinish(const gang::FinishGang& /*action*/) override {}
  void SendFinish(const std::set<uint32_t>& nodes) override;
  void Attend(uint32_t node) override;
  void CloseLink(uint32_t node) override;
  void AwaitEndRecord() override;
  Status OrderRequeue(const gang::RequeueJob& /*action*/) override { return {}; }
  void Requeue() override;
  void MaybeOver() override;
  void Commit(const PendingSaves::Commit& action, const Fence& fence,
              const std::set<uint64_t>& kept) override;
  void Do(const PendingSaves::Tell& action) override;
  void Do(const PendingSaves::Wait& action) override;
  void Do(const PendingSaves::Note& action) override;
  void Do(const PendingSaves::StoreRefuses& /*action*/) override {}
  void Committed(const Manifest& manifest, const PendingSaves::Over& over) override;
  void Collect() override {}
  [[nodiscard]] bool HasLease() const override;
  void Lead(const lease::LeadSettings& settings) override;
  void NodeAttached(uint32_t node) override;
  void NodeClosed(uint32_t node) override;
  void NodeRemoved(uint32_t node) override;
  void SetStop(uint64_t generation) override;
  void StoreConfirmed(Nanos asked_at) override;
  void Depose(uint64_t term) override;
  void RaiseAt(std::optional<Nanos> at) override;
  void Probe() override;
  void ProbeAbsent() override;

  void TryTakeOver();
  void Swap(const TakeOver::Swap& swap, const Store::Head& head);
  void Taken(const Store::Head& head, TakeOver::Swap::After after);
  void NotTaken(const Error& why);
  void Registered(uint32_t node, const Register& registration);
  void StepDown(std::optional<uint32_t> successor, uint64_t term = 0);
  void AwaitCommits(Nanos until, const std::function<void()>& then);
  void AskToCommit(const Manifest& manifest, const Checkpoint& checkpoint, const std::set<uint64_t>& kept,
                   const std::function<void()>& done);
  void Mark(const gang::RejectCheckpoint& bad, const Fence& used, const std::function<void()>& done);
  [[nodiscard]] gang::CheckpointBad Judged(gang::CheckpointBad bad) const;
  [[nodiscard]] std::set<uint32_t> Here() const;  // nodes that have a link
  [[nodiscard]] GangRecord Record() const;

  void Send(uint32_t node, uint64_t term, decltype(CoordinatorMessage::kind) kind);
  void Broadcast(uint64_t term, const decltype(CoordinatorMessage::kind)& kind);
  // Asks the store; `then` is called on the main loop, unless this coordinator has gone.
  void Ask(std::function<bool(Store::Head&)> change,
           std::function<void(Store::Answer, const Store::Head&)> then);
  void Look(std::function<void(Store::Answer, const Store::Head&)> then);  // changes nothing
  // Swaps as Catalog::AdvanceForSure does. `then` is called with the time at which the last try began, and the head that the store has
  // after that try.
  void AdvanceForSure(Advance advance, std::function<bool()> go_on,
                      std::function<void(Store::Answer, Nanos asked, const Store::Head&)> then);
  void Queue(Thread& thread, Work work);
  void RunQueue(Thread& thread);
  void Post(Nanos delay, World::Task task);

  Daemon& daemon_;
  World& world_;
  Origin origin_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  TakeOver take_over_;
  Nanos asked_at_ = 0;  // before the record was taken
  CoordinatorCore core_;
  std::map<uint32_t, std::shared_ptr<Link>> links_;
  std::set<uint32_t> registered_;
  std::vector<std::pair<uint32_t, AgentMessage>> early_;
  std::optional<Finish> end_;
  std::optional<Start> start_;
  std::map<gang::Timer, uint64_t> timers_;
  uint64_t timer_number_ = 0;
  uint64_t raise_timer_ = 0;
  uint64_t end_waits_ = 0;  // begun for the record of the end
  std::map<uint32_t, Nanos> silent_since_;
  bool confirming_ = false;

  Thread records_;
  Thread committer_;
  int commits_ = 0;  // ordered, and not over
};

}  // namespace muster::sim
