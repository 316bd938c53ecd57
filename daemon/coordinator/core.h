// What a coordinator makes of all that it hears: which of its parts hears of it, in which order, and what follows. A Shell carries that
// out: the daemon's Coordinator, and the simulator's. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/fence.h"
#include "ceph/catalog/manifest.h"
#include "daemon/coordinator/ending.h"
#include "daemon/coordinator/pending_saves.h"
#include "daemon/coordinator/record.h"
#include "daemon/coordinator/record_fence.h"
#include "daemon/coordinator/starts.h"
#include "daemon/coordinator/terms.h"
#include "daemon/gang/gang.h"
#include "daemon/lease/types.h"

namespace muster {

class CoordinatorCore {
 public:
  using Nanos = lease::Nanos;

  // What is asked of the store is answered by a call of the core, later, in the order in which it was asked.
  class Shell {
   public:
    Shell() = default;
    Shell(const Shell&) = delete;
    Shell& operator=(const Shell&) = delete;
    virtual ~Shell() = default;

    // By the clock of leases.
    [[nodiscard]] virtual Nanos Now() const = 0;

    // ---- orders of the state machine that no other part need know of
    virtual void Do(const gang::TestLinks& action) = 0;
    virtual void Do(const gang::ReportToJob& action) = 0;
    virtual void Do(const gang::Note& action) = 0;
    virtual void Do(const gang::TellMembers& action) = 0;
    virtual void Do(const gang::SetTimer& action) = 0;
    virtual void Do(const gang::LoseNode& action) = 0;
    virtual void Do(const gang::DrainInSlurm& action) = 0;
    // The state machine has made `actions` of an event, which are carried out now; and then: they have been. `before`, `generation`: the
    // gang's before the event.
    virtual void Handled(const gang::Event& event, gang::State before,
                         const std::vector<gang::Action>& actions) = 0;
    virtual void Fed(const gang::Event& event, gang::State before, uint64_t generation) = 0;

    // ---- the record
    // Written: by RecordOf, as things are now. Answers: RecordWritten, or Deposed.
    virtual void WriteRecord(const RecordFence::Advance& advance) = 0;
    // Written: the same, but for the term and its witnesses. Answer: TermRaised.
    virtual void WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) = 0;
    // Another may have the record: whose it is, is read, and this coordinator steps down.
    virtual void FindSuccessor(const std::string& why) = 0;
    // Which term the store has. Answer: StoreHasTerm.
    virtual void AskTerm() = 0;
    // A checkpoint is marked bad. Answer: Marked. `later`: after a pause.
    virtual void MarkBad(const gang::RejectCheckpoint& bad, bool later) = 0;

    // ---- the gang's nodes
    // The Start of this generation is made, once for all nodes.
    virtual void BuildStart(const Starts::Prepared& prepared) = 0;
    virtual void SendStart(const std::set<uint32_t>& nodes) = 0;
    virtual void SendStop(const gang::StopGeneration& stop) = 0;
    // How the gang ends: SendFinish follows.
    virtual void BuildFinish(const gang::FinishGang& finish) = 0;
    virtual void SendFinish(const std::set<uint32_t>& nodes) = 0;
    // A node that has registered may beat, and is told how.
    virtual void Attend(uint32_t node) = 0;
    // A lost node's link: should the node come back, it is to say again where it is.
    virtual void CloseLink(uint32_t node) = 0;

    // ---- the end
    // After the time that a record of an end may take, EndRecordLate is to be called.
    virtual void AwaitEndRecord() = 0;
    // Kept until Requeue. Not done: the job cannot be requeued.
    virtual Status OrderRequeue(const gang::RequeueJob& action) = 0;
    virtual void Requeue() = 0;
    // The gang, or this coordinator's part in it, may be over.
    virtual void MaybeOver() = 0;

    // ---- saves
    // Under `fence`; `kept`: checkpoints that stay beside the newest. Answer: CommitOver.
    virtual void Commit(const PendingSaves::Commit& commit, const Fence& fence,
                        const std::set<uint64_t>& kept) = 0;
    virtual void Do(const PendingSaves::Tell& action) = 0;
    // After that time SaveAgain is to be called.
    virtual void Do(const PendingSaves::Wait& action) = 0;
    virtual void Do(const PendingSaves::Note& action) = 0;
    virtual void Do(const PendingSaves::StoreRefuses& action) = 0;
    virtual void Committed(const Manifest& manifest, const PendingSaves::Over& over) = 0;

    // ---- the lease machine of the term; where there is none, what it is told is lost
    [[nodiscard]] virtual bool HasLease() const = 0;  // there is one
    virtual void Lead(const lease::LeadSettings&
                          settings) = 0;  // a new one, and all nodes that have registered are attended
    virtual void NodeAttached(uint32_t node) = 0;
    virtual void NodeClosed(uint32_t node) = 0;
    virtual void NodeRemoved(uint32_t node) = 0;
    virtual void SetStop(uint64_t generation) = 0;
    virtual void StoreConfirmed(Nanos asked_at) = 0;
    virtual void Depose(uint64_t term) = 0;
    // MaybeRaise is to be called then; none: no more.
    virtual void RaiseAt(std::optional<Nanos> at) = 0;
    // Whether nodes that are not heard have a musterd, and whether nodes that have not joined are alive. Answers: Refuses,
    // gang::AbsentProbed.
    virtual void Probe() = 0;
    virtual void ProbeAbsent() = 0;
  };

  // `leases`: there are some. Without them nobody else can coordinate.
  CoordinatorCore(Shell& shell, Terms terms, bool leases)
      : shell_(shell), terms_(std::move(terms)), leases_(leases) {}

  // A checkpoint.
  struct Listed {
    uint64_t step = 0;
    uint64_t generation = 0;
    std::string manifest;  // its name
  };

  // ---- from the take-over on
  // The record is this coordinator's. `good`: checkpoints that the store lists; `newest`: of them.
  void Take(const Fence& head, const std::vector<Listed>& good, Starts::Step newest);
  // `goes_on`: the gang's own record; null: the gang is new. `here`: the nodes that have a link.
  void Begin(gang::Settings settings, const GangRecord* goes_on, const Terms::Origin& origin,
             const std::set<uint32_t>& here);
  void Go() { Carry(gang_->Begin()); }
  // The record that names the witnesses is in the store.
  void Lead();

  // ---- nodes
  void Feed(const gang::Event& event);
  // Feed(NodeJoined) follows. What it says of the newest generation that it was a part of: the record may be written behind.
  void Registered(uint32_t node, uint64_t started_generation, Starts::Step started_from);
  // Its link has ended.
  void Left(uint32_t node);

  // ---- what the lease machine says
  void Heard(uint32_t node);
  void Silent(const gang::NodeSilent& silent);
  void Stopped(uint32_t node, uint64_t generation);
  void SetQuorum(bool quorum);
  void RaiseTerm();
  void MaybeRaise();
  void SeenTerm(uint64_t term);  // a newer one
  // Whoever has read this term in the store asks. True: it is newer, and another's.
  bool Overtaken(uint64_t term);
  // The port of a node that is not heard refuses.
  void Refuses(uint32_t node);

  // What is in the record has changed.
  void Persist();

  // ---- what has become of questions to the store
  // True: the generation's record is news.
  bool RecordWritten(uint64_t generation, gang::State state, Nanos asked_at);
  void TermRaised(const Status& raised);
  void StoreHasTerm(uint64_t term, Nanos asked_at);
  // The store has refused what was written, or another is known to have the record.
  void Deposed(const std::string& why);
  // `used`: under which it was marked. `good`: what the store lists since then; none: the store does not say.
  void Marked(const Fence& used, const gang::RejectCheckpoint& bad, const Status& marked,
              const std::optional<std::vector<Listed>>& good);
  // True: nothing comes of the save.
  bool CommitOver(const Manifest& manifest, const Status& status);
  // `late`: the host has stood still meanwhile.
  void EndRecordLate(bool late);

  // ---- saves
  void ShardWritten(const PendingSaves::Written& written, Shard shard);
  void ShardFailed(const PendingSaves::Failure& failure);
  void ShardDelayed(uint64_t generation, uint64_t step, const std::string& why);
  void FailedBefore(uint64_t generation, uint64_t step, const std::string& error);
  void SaveAgain(uint64_t generation, uint64_t step);
  void EndSaves() { saves_.Clear(); }

  // Nothing more is to be written: the record is another's, or no coordinator's.
  void Lose() { fence_.Lose(); }

  [[nodiscard]] bool began() const { return gang_.has_value(); }
  [[nodiscard]] bool lost() const { return fence_.lost(); }
  [[nodiscard]] bool active() const { return began() && !lost(); }
  // Nobody need coordinate any more.
  [[nodiscard]] bool over() const;
  // Most of the gang follows this coordinator.
  [[nodiscard]] bool followed() const;
  // As things are now: all that another coordinator needs.
  [[nodiscard]] GangRecord Record(const GangJob& job, const std::string& host) const;
  [[nodiscard]] const gang::Gang& gang() const { return *gang_; }
  [[nodiscard]] const RecordFence& fence() const { return fence_; }
  [[nodiscard]] const Starts& starts() const { return starts_; }
  [[nodiscard]] const PendingSaves& saves() const { return saves_; }
  [[nodiscard]] const Terms& terms() const { return terms_; }
  [[nodiscard]] const Ending& ending() const { return ending_; }

 private:
  void Carry(const std::vector<gang::Action>& actions);
  void Carry(const PendingSaves::Actions& actions);
  void Do(const gang::StartGeneration& action);
  void Do(const gang::StopGeneration& action);
  void Do(const gang::FinishGang& action);
  void Do(const gang::Persist& /*action*/) { Persist(); }
  void Do(const gang::RejectCheckpoint& action);
  void Do(const gang::RequeueJob& action);
  void Do(const auto& action) { shell_.Do(action); }
  void Do(const PendingSaves::Commit& action);
  void MaybeSendStarts();
  bool PrepareStart();
  void MaybeSendFinish();
  void MaybeRequeue();
  void CommitWaiting();
  [[nodiscard]] PendingSaves::Now SavesNow() const;

  Shell& shell_;
  std::optional<gang::Gang> gang_;
  RecordFence fence_;
  Starts starts_;
  PendingSaves saves_;
  Ending ending_;
  Terms terms_;
  const bool leases_;
  Nanos asked_at_ = 0;  // for the term that is being raised
};

}  // namespace muster
