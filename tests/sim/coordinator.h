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

#include "daemon/gang/gang.h"
#include "daemon/lease/coordinator_lease.h"
#include "tests/sim/messages.h"
#include "tests/sim/network.h"
#include "tests/sim/store.h"

namespace muster::sim {

class Daemon;

class Coordinator {
 public:
  struct Origin {
    bool promised = false;    // this node's agent has found that the coordinator before is dead
    uint64_t after_term = 0;  // with `promised`: only if the record still has this term
    std::function<void(bool)> taken = [](bool) {};
  };
  Coordinator(Daemon& daemon, Origin origin);
  ~Coordinator();

  void Begin() { TryTakeOver(); }
  void Attached(uint32_t node, const std::shared_ptr<Link>& link, const Register& registration);
  void Detached(uint32_t node, const Link* link);
  void Hear(uint32_t node, const Link* link, const AgentMessage& message);
  void Hear(const gang::CheckpointBad& bad);
  void OnLease(const lease::Event& event);
  void Feed(const gang::Event& event);

  [[nodiscard]] bool Leads() const { return gang_.has_value() && !deposed_; }
  [[nodiscard]] const gang::Gang& gang() const { return *gang_; }
  // What the current generation started from.
  [[nodiscard]] std::optional<uint64_t> restore() const { return restore_; }
  [[nodiscard]] uint64_t term() const { return fence_.term; }

 private:
  struct Pending {
    uint64_t generation = 0;
    std::set<uint32_t> shards;
    bool committing = false;
    int attempts = 0;
  };
  // One operation of a worker thread: calls `done` when the next one may begin.
  using Work = std::function<void(std::function<void()> done)>;
  struct Thread {
    std::deque<Work> queue;
    bool working = false;
  };

  void TryTakeOver();
  void TakenOver(Store::Answer answer, const Store::Head& head);
  void Registered(uint32_t node, const Register& registration);
  void Deposed();
  void StepDown(std::optional<uint32_t> successor);
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
  void Do(const gang::LoseNode& /*action*/) {}
  void Do(const gang::DrainInSlurm& /*action*/) {}
  void Do(const gang::ReportToJob& /*action*/) {}
  void Do(const gang::TellMembers& action);
  void MaybeSendStarts();
  void MaybeSendFinish();
  void BuildStart();
  void AwaitCommits(Nanos until, const std::function<void()>& then);
  void Persist(Fence from, Fence to, const Record& record, std::function<void()> done);

  void OnShard(const ShardWritten& written);
  void MaybeCommit(uint64_t step);
  void CommitWaiting();
  void TryCommit(uint64_t step);
  void AskToCommit(const Fence& fence, const Checkpoint& checkpoint, const std::set<uint64_t>& kept,
                   const std::function<void()>& done);
  void TryCommitSoon(uint64_t generation, uint64_t step);
  void CommitDone(Store::Answer answer, const Fence& fence, uint64_t step);
  bool CommitLater(const Fence& fence, uint64_t step);

  void BeginLeases(const Record* previous);
  void Lead();
  void Attend(uint32_t node);
  void Probe();
  void ProbeAbsent();
  void ConfirmInStore();
  void RaiseTerm();
  void AskToRaise(Fence from, Fence to, const Record& record, bool unknown,
                  const std::function<void()>& done);
  void TermRaised(Store::Answer answer, Fence to);
  void MaybeRenewWitnesses();
  [[nodiscard]] lease::WitnessSet PickWitnesses() const;

  void Send(uint32_t node, uint64_t term, decltype(CoordinatorMessage::kind) kind);
  void Broadcast(uint64_t term, const decltype(CoordinatorMessage::kind)& kind);
  void Queue(Thread& thread, Work work);
  void RunQueue(Thread& thread);
  void Post(Nanos delay, World::Task task);
  [[nodiscard]] Record MakeRecord() const;

  Daemon& daemon_;
  World& world_;
  Origin origin_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  std::optional<gang::Gang> gang_;
  std::map<uint32_t, std::shared_ptr<Link>> links_;
  std::set<uint32_t> registered_;
  std::vector<std::pair<uint32_t, AgentMessage>> early_;
  std::optional<Finish> end_;
  bool deposed_ = false;
  bool asks_whose_ = false;
  const Nanos made_;
  int tries_ = 0;
  Nanos deadline_;

  Fence fence_;
  std::optional<uint64_t> latest_;
  std::optional<uint64_t> restore_;
  std::map<uint64_t, std::optional<uint64_t>>
      inherited_;  // what generations of coordinators before started from
  std::optional<Start> start_;
  uint64_t start_term_ = 0;
  std::set<uint32_t> to_start_;
  bool start_durable_ = false;
  std::set<uint32_t> to_finish_;
  bool end_durable_ = false;
  uint64_t durable_generation_ = 0;
  uint32_t rejecting_ = 0;
  std::set<std::string> rejected_;
  std::map<uint64_t, Pending> pending_;
  std::set<uint64_t> committed_;
  std::map<gang::Timer, uint64_t> timers_;
  uint64_t timer_number_ = 0;

  lease::LeadSettings lead_;
  lease::WitnessSet witnesses_;
  std::vector<lease::WitnessSet> former_;
  std::set<uint32_t> heard_;
  std::map<uint32_t, Nanos> silent_since_;
  bool raising_ = false;
  uint64_t newer_term_ = 0;
  bool persist_again_ = false;
  bool confirming_ = false;

  Thread records_;
  Thread committer_;
  int commits_ = 0;  // ordered, and not over
};

}  // namespace muster::sim
