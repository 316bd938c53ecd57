// Decides for the gang, with the rules of daemon/coordinator: feeds the real state machine, carries out its actions, keeps
// the record, commits checkpoints, and listens to the real lease machine.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/coordinator/ending.h"
#include "daemon/coordinator/pending_saves.h"
#include "daemon/coordinator/record_fence.h"
#include "daemon/coordinator/starts.h"
#include "daemon/coordinator/take_over.h"
#include "daemon/coordinator/terms.h"
#include "daemon/gang/gang.h"
#include "daemon/lease/coordinator_lease.h"
#include "tests/sim/messages.h"
#include "tests/sim/network.h"
#include "tests/sim/store.h"

namespace muster::sim {

class Daemon;

class Coordinator {
 public:
  struct Origin : TakeOver::Origin {
    lease::WitnessSet closed;  // with `promised`: nodes whose musterd had gone
    std::function<void(bool)> taken = [](bool) {};
  };
  Coordinator(Daemon& daemon, Origin origin);
  ~Coordinator();

  void Begin() { TryTakeOver(); }
  void Attached(uint32_t node, const std::shared_ptr<Link>& link, const Register& registration);
  void Detached(uint32_t node, const Link* link);
  void Hear(uint32_t node, const Link* link, const AgentMessage& message);
  [[nodiscard]] gang::CheckpointBad Judged(gang::CheckpointBad bad) const;
  void OnLease(const lease::Event& event);
  void Feed(const gang::Event& event);

  [[nodiscard]] bool Leads() const { return gang_.has_value() && !fence_.lost(); }
  [[nodiscard]] const gang::Gang& gang() const { return *gang_; }
  // What the current generation started from.
  [[nodiscard]] std::optional<uint64_t> restore() const { return starts_.from(); }
  [[nodiscard]] uint64_t term() const { return fence_.term(); }

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

  void TryTakeOver();
  void Swap(const TakeOver::Swap& swap, const Store::Head& head);
  void Taken(const Store::Head& head, TakeOver::Swap::After after);
  void NotTaken(const Error& why);
  void Registered(uint32_t node, const Register& registration);
  void Deposed();
  void StepDown(std::optional<uint32_t> successor, uint64_t term = 0);
  void MaybeOver();

  void Carry(const std::vector<gang::Action>& actions);
  void Do(const gang::StartGeneration& action);
  void Do(const gang::TestLinks& action);
  void Do(const gang::StopGeneration& action);
  void Do(const gang::FinishGang& action);
  void Do(const gang::Persist& action);
  void Do(const gang::SetTimer& action);
  void Do(const gang::RejectCheckpoint& action);
  void Reject(const gang::RejectCheckpoint& bad, const std::function<void()>& done);
  void Do(const gang::RequeueJob& action);
  void Do(const gang::Note& action);
  void Do(const gang::LoseNode& action);
  void Do(const gang::DrainInSlurm& /*action*/) {}
  void Do(const gang::ReportToJob& /*action*/) {}
  void Do(const gang::TellMembers& action);
  void MaybeSendStarts();
  void MaybeSendFinish();
  bool PrepareStart();
  void BuildStart(const Starts::Prepared& prepared);
  void MaybeRequeue();
  void WaitForEndRecord();
  void AwaitCommits(Nanos until, const std::function<void()>& then);
  void Persisted(const GangRecord& record, uint64_t generation, Nanos asked);

  void OnShard(const ShardWritten& written);
  void CommitWaiting();
  void Carry(const PendingSaves::Actions& actions);
  void Do(const PendingSaves::Commit& action);
  void Do(const PendingSaves::Tell& action);
  void Do(const PendingSaves::Wait& action);
  void Do(const PendingSaves::Note& action);
  void Do(const PendingSaves::StoreRefuses& /*action*/) {}
  [[nodiscard]] PendingSaves::Now SavesNow() const;
  void AskToCommit(const Fence& fence, const Checkpoint& checkpoint, const std::set<uint64_t>& kept,
                   const std::function<void()>& done);
  void CommitDone(Store::Answer answer, const Fence& fence, uint64_t step);

  void BeginLeases(const std::optional<Terms::Found>& found);
  void Lead();
  void Attend(uint32_t node);
  void Probe();
  void ProbeAbsent();
  void CloseLost(uint32_t node);
  void ConfirmInStore();
  void MaybeRaise();
  void RaiseTerm();
  void TermRaised(bool raised);
  [[nodiscard]] std::set<uint32_t> Here() const;  // nodes that have a link

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
  [[nodiscard]] GangRecord Record() const;

  Daemon& daemon_;
  World& world_;
  Origin origin_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  std::optional<gang::Gang> gang_;
  std::map<uint32_t, std::shared_ptr<Link>> links_;
  std::set<uint32_t> registered_;
  std::vector<std::pair<uint32_t, AgentMessage>> early_;
  std::optional<Finish> end_;
  TakeOver take_over_;
  Nanos asked_at_ = 0;

  RecordFence fence_;
  Starts starts_;
  Ending ending_;
  uint64_t end_waits_ = 0;  // begun for the record of the end
  PendingSaves saves_;
  std::optional<Start> start_;
  std::map<gang::Timer, uint64_t> timers_;
  uint64_t timer_number_ = 0;
  uint64_t raise_timer_ = 0;

  Terms terms_;
  std::map<uint32_t, Nanos> silent_since_;
  bool confirming_ = false;

  Thread records_;
  Thread committer_;
  int commits_ = 0;  // ordered, and not over
};

}  // namespace muster::sim
