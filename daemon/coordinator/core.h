// Decides what a coordinator does about each thing that it hears from the gang's nodes, its lease machine, the store and Slurm. The parts
// that the core includes here each have a rule; the core tells them of events in the right order, and gives the orders that follow to a
// shell, which has a part for each subject. The daemon has a shell, and the simulator has another. Pure: no I/O, clock or thread.
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

  class ShellPart {
   public:
    ShellPart() = default;
    ShellPart(const ShellPart&) = delete;
    ShellPart& operator=(const ShellPart&) = delete;
    virtual ~ShellPart() = default;
  };

  // Tells Slurm.
  class SlurmShell : public ShellPart {
   public:
    virtual void Do(const gang::LoseNode& action) = 0;
    virtual void Do(const gang::DrainInSlurm& action) = 0;
    // Keeps the order until Requeue carries it out. An error says why the job cannot be requeued.
    virtual Status OrderRequeue(const gang::RequeueJob& action) = 0;
    virtual void Requeue() = 0;
  };

  // Commits checkpoints.
  class SaveShell : public ShellPart {
   public:
    // Commits under `fence`, and keeps the checkpoints of the steps `kept` beside the newest ones. The answer is CommitOver.
    virtual void Commit(const PendingSaves::Commit& commit, const Fence& fence,
                        const std::set<uint64_t>& kept) = 0;
    virtual void Do(const PendingSaves::Tell& action) = 0;
    // SaveAgain is to be called when the action's time is over.
    virtual void Do(const PendingSaves::Wait& action) = 0;
    virtual void Do(const PendingSaves::Note& action) = 0;
    virtual void Do(const PendingSaves::StoreRefuses& action) = 0;
    virtual void Committed(const Manifest& manifest, const PendingSaves::Over& over) = 0;
    // Removes what older generations have left in the store.
    virtual void Collect() = 0;
  };

  // Has the lease machine of the term. NodeAttached to Depose do nothing where there is no machine.
  class LeaseShell : public ShellPart {
   public:
    // The time by the clock that leases go by.
    [[nodiscard]] virtual Nanos Now() const = 0;
    [[nodiscard]] virtual bool HasLease() const = 0;
    // Replaces the machine by one with these settings, and attends all nodes that have registered.
    virtual void Lead(const lease::LeadSettings& settings) = 0;
    // Tells a node that has registered how it is to beat.
    virtual void Attend(uint32_t node) = 0;
    virtual void NodeAttached(uint32_t node) = 0;
    virtual void NodeClosed(uint32_t node) = 0;
    virtual void NodeRemoved(uint32_t node) = 0;
    virtual void SetStop(uint64_t generation) = 0;
    virtual void StoreConfirmed(Nanos asked_at) = 0;
    virtual void Depose(uint64_t term) = 0;
    // MaybeRaise is to be called at that time. It replaces the time before; none: it is not to be called.
    virtual void RaiseAt(std::optional<Nanos> at) = 0;
    // Finds out which nodes that are not heard have no musterd. The answer for each such node is Refuses.
    virtual void Probe() = 0;
    // Finds out which nodes that have not joined are dead. The answer is Feed(gang::AbsentProbed).
    virtual void ProbeAbsent() = 0;
  };

  // Writes the gang's record and reads it. The store answers later, by a call of the core: writes and marks in their order, and what is
  // only read may overtake them.
  class RecordShell : public ShellPart {
   public:
    // Writes core.Record() as it is now. The answer is RecordWritten, or Deposed.
    virtual void WriteRecord(const RecordFence::Advance& advance) = 0;
    // Writes core.Record() with the new term and its witnesses. The answer is TermRaised.
    virtual void WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) = 0;
    // Another coordinator may have the record: the shell reads whose the record is, and this coordinator steps down.
    virtual void FindSuccessor(const std::string& why) = 0;
    // Reads the term of the record in the store. The answer is StoreHasTerm.
    virtual void AskTerm() = 0;
    // Marks a checkpoint bad in the store; with `later` after a pause. The answer is Marked.
    virtual void MarkBad(const gang::RejectCheckpoint& bad, bool later) = 0;
  };

  // Carries the other orders out.
  class Shell : public ShellPart {
   public:
    // ---- orders of the state machine that go straight to the shell
    virtual void Do(const gang::TestLinks& action) = 0;
    virtual void Do(const gang::ReportToJob& action) = 0;
    virtual void Do(const gang::Note& action) = 0;
    virtual void Do(const gang::TellMembers& action) = 0;
    virtual void Do(const gang::SetTimer& action) = 0;
    // For who watches the state machine: what an event has led to, before these actions are carried out. `before`: the gang's state then.
    virtual void Handled(const gang::Event& /*event*/, gang::State /*before*/,
                         const std::vector<gang::Action>& /*actions*/) {}
    // The actions of an event have been carried out. `before`, `generation`: the gang's before the event.
    virtual void Fed(gang::State before, uint64_t generation) = 0;

    // ---- the gang's nodes
    // Makes the Start that all nodes of this generation get.
    virtual void BuildStart(const Starts::Prepared& prepared) = 0;
    virtual void SendStart(const std::set<uint32_t>& nodes) = 0;
    virtual void SendStop(const gang::StopGeneration& stop) = 0;
    // Makes the Finish that SendFinish sends.
    virtual void BuildFinish(const gang::FinishGang& finish) = 0;
    virtual void SendFinish(const std::set<uint32_t>& nodes) = 0;
    // Closes the link of a lost node, so that the node registers anew should it come back.
    virtual void CloseLink(uint32_t node) = 0;

    // ---- the end
    // EndRecordLate is to be called when the record of the gang's end has had its time to be written.
    virtual void AwaitEndRecord() = 0;
    // over() may have become true.
    virtual void MaybeOver() = 0;
  };

  struct Shells {
    Shell& gang;
    RecordShell& record;
    SlurmShell& slurm;
    SaveShell& saves;
    LeaseShell& lease;
  };

  // `leases`: this daemon has a beat thread. Without leases no other node takes the coordination over.
  CoordinatorCore(const Shells& shells, Terms terms, bool leases)
      : shells_(shells), terms_(std::move(terms)), leases_(leases) {}

  // A checkpoint of the store's list.
  struct Listed {
    uint64_t step = 0;
    uint64_t generation = 0;  // that has saved it
    std::string manifest;     // the name of its manifest
  };

  // ---- from the take-over on
  // This coordinator has taken the record, whose fence is `head`. `good`: the listed checkpoints that are good; `newest`: the newest of
  // their steps.
  void Take(const Fence& head, const std::vector<Listed>& good, Starts::Step newest);
  // Makes the gang. `goes_on`: the record of a gang that goes on; null: the gang is new. `here`: the nodes that have a link.
  void Begin(gang::Settings settings, const GangRecord* goes_on, const Terms::Origin& origin,
             const std::set<uint32_t>& here);
  // After Begin: carries out what the gang begins with.
  void Go() { Carry(gang_->Begin()); }
  // The store has a record that names the term's witnesses, so the term's lease may begin.
  void Lead();

  // ---- nodes
  void Feed(const gang::Event& event);
  // A node has registered; the shell calls Feed(NodeJoined) after this. `started_generation`: the newest that the node was a part of, and
  // `started_from`: the checkpoint which that generation started from. The record may not know of it yet.
  void Registered(uint32_t node, uint64_t started_generation, Starts::Step started_from);
  // A node's link has ended.
  void Left(uint32_t node);

  // ---- what the lease machine says
  void Heard(uint32_t node);
  void Silent(const gang::NodeSilent& silent);
  void Stopped(uint32_t node, uint64_t generation);
  void SetQuorum(bool quorum);
  void RaiseTerm();
  void MaybeRaise();
  // A node follows this newer term.
  void SeenTerm(uint64_t term);
  // The store's record has this term. True: it is another coordinator's newer term, and this coordinator is deposed.
  bool Overtaken(uint64_t term);
  // The port of a node that is not heard refuses.
  void Refuses(uint32_t node);

  // Has the record written anew, because what it says has changed.
  void Persist();

  // ---- the store's answers
  // A record is in the store, which was made when the gang had this generation and state.
  void RecordWritten(uint64_t generation, gang::State state, Nanos asked_at);
  void TermRaised(const Status& raised);
  void StoreHasTerm(uint64_t term, Nanos asked_at);
  // The store has refused a write by its fence, or another coordinator is known to have the record: FindSuccessor is ordered, once.
  void Deposed(const std::string& why);
  // MarkBad was tried under the fence `used`. `good`: the checkpoints that the store lists as good since then; none: the list was not read.
  void Marked(const Fence& used, const gang::RejectCheckpoint& bad, const Status& marked,
              const std::optional<std::vector<Listed>>& good);
  // A commit was tried, and `status` says how it went. True: the save has failed, and is not tried again.
  bool CommitOver(const Manifest& manifest, const Status& status);
  // The time of AwaitEndRecord is over. `late`: this host has stood still meanwhile.
  void EndRecordLate(bool late);

  // ---- saves
  void ShardWritten(const PendingSaves::Written& written, Shard shard);
  void ShardFailed(const PendingSaves::Failure& failure);
  void ShardDelayed(uint64_t generation, uint64_t step, const std::string& why);
  void FailedBefore(uint64_t generation, uint64_t step, const std::string& error);
  void SaveAgain(uint64_t generation, uint64_t step);
  void EndSaves() { saves_.Clear(); }

  // From now on nothing is written, and no event is handled: the record is another coordinator's, or the gang is over.
  void Lose() { fence_.Lose(); }

  [[nodiscard]] bool began() const { return gang_.has_value(); }
  [[nodiscard]] bool lost() const { return fence_.lost(); }
  [[nodiscard]] bool active() const { return began() && !lost(); }
  // This coordinator is not needed any more: the gang has ended or is requeued, or the record is lost.
  [[nodiscard]] bool over() const;
  // Most of the gang follows this coordinator.
  [[nodiscard]] bool followed() const;
  // The record with all that another coordinator needs, as it is now.
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
  // Calls `Do` of that part of the shell which carries out actions of this kind.
  void Do(const auto& action) {
    if constexpr (requires { shells_.slurm.Do(action); }) {
      shells_.slurm.Do(action);
    } else if constexpr (requires { shells_.saves.Do(action); }) {
      shells_.saves.Do(action);
    } else {
      shells_.gang.Do(action);
    }
  }
  void Do(const PendingSaves::Commit& action);
  void MaybeSendStarts();
  bool PrepareStart();
  void MaybeSendFinish();
  void MaybeRequeue();
  void CommitWaiting();
  [[nodiscard]] PendingSaves::Now SavesNow() const;

  const Shells shells_;
  std::optional<gang::Gang> gang_;
  RecordFence fence_;
  Starts starts_;
  PendingSaves saves_;
  Ending ending_;
  Terms terms_;
  const bool leases_;
  Nanos asked_at_ = 0;  // when WriteTerm was ordered, for the term that is being raised
};

}  // namespace muster
