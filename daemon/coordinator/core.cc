#include "daemon/coordinator/core.h"

#include <fmt/format.h>

#include <variant>

#include "base/planted.h"
#include "daemon/coordinator/record_of_gang.h"

namespace muster {

// ---- from the take-over on

void CoordinatorCore::Take(const Fence& head, const std::vector<Listed>& good, Starts::Step newest) {
  fence_.Take(head);
  starts_.SetNewest(newest);
  for (const Listed& checkpoint : good) {
    if (checkpoint.generation == head.generation)
      saves_.CommittedBefore(checkpoint.generation, checkpoint.step);
  }
}

void CoordinatorCore::Begin(gang::Settings settings, const GangRecord* goes_on, const Terms::Origin& origin,
                            const std::set<uint32_t>& here) {
  gang::Memory memory;
  std::optional<Terms::Found> found;
  if (goes_on != nullptr) {
    memory = MemoryOf(*goes_on);
    found = TermsOf(*goes_on);
    Inherit(*goes_on, &starts_);
  }
  memory.generation = fence_.fence().generation;  // of a new gang: of the one that had its key before
  gang_.emplace(std::move(settings), memory);
  if (leases_) terms_.Take(origin, found, *gang_, here);
}

GangRecord CoordinatorCore::Record(const GangJob& job, const std::string& host) const {
  return RecordOf({job, host, fence_, gang_ ? &*gang_ : nullptr, starts_, terms_});
}

void CoordinatorCore::Lead() {
  if (!active()) return;
  const lease::LeadSettings& lead = terms_.Lead(fence_.term(), *gang_);
  shells_.lease.Lead(lead);
  // Those that have come and gone before there was a lease: they are waited for no longer than others.
  for (const lease::NodeIndex node : lead.inherited ? std::vector<lease::NodeIndex>() : Terms::Away(*gang_)) {
    shells_.lease.NodeAttached(node);
    shells_.lease.NodeClosed(node);
  }
  if (lead.inherited) shells_.lease.Probe();
  shells_.lease.ProbeAbsent();
  Feed(gang::Leads{});
}

// ---- the state machine

void CoordinatorCore::Feed(const gang::Event& event) {
  if (!active()) return;
  const gang::State before = gang_->state();
  const uint64_t generation = gang_->generation();
  const std::vector<gang::Action> actions = gang_->Handle(event);
  shells_.gang.Handled(event, before, actions);
  Carry(actions);
  shells_.gang.Fed(before, generation);
  if (before == gang::State::kRecovering && gang_->state() != before) CommitWaiting();
  MaybeRaise();
  shells_.gang.MaybeOver();  // the end may come when no agent is there any more
}

void CoordinatorCore::Carry(const std::vector<gang::Action>& actions) {
  for (const gang::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void CoordinatorCore::Do(const gang::StartGeneration& action) {
  starts_.Order(action.nodes, action.durable);
  // Before the record is made: it says what the generation starts from.
  if (starts_.MayPrepare()) PrepareStart();
  MaybeSendStarts();
}

// Not before a checkpoint that is bad is marked so, nor, if it must be, before the record is in the store.
void CoordinatorCore::MaybeSendStarts() {
  if (lost()) return;
  const std::set<uint32_t> due = starts_.Due(fence_, gang_->generation());
  if (due.empty()) return;
  if (PrepareStart()) Persist();
  shells_.gang.SendStart(due);
}

// True when it was not there yet.
bool CoordinatorCore::PrepareStart() {
  const Starts::Prepared prepared = starts_.Prepare(gang_->generation(), fence_.term());
  if (!prepared.anew) return false;
  const bool first = !prepared.inherited && !prepared.again;
  if (first) saves_.BeginGeneration();
  shells_.gang.BuildStart(prepared);
  const std::string from = starts_.from() ? fmt::format("from the checkpoint of step {}", *starts_.from())
                                          : "from the beginning: there is no checkpoint";
  gang_->SetOrigin(from);
  if (first && gang_->generation() > 1)
    shells_.gang.Do(gang::Note{"restore", fmt::format("generation {} starts {}", gang_->generation(), from),
                               gang_->generation()});
  return true;
}

void CoordinatorCore::Do(const gang::StopGeneration& action) {
  shells_.gang.SendStop(action);
  if (action.older) return;
  starts_.Stop();
  shells_.lease.SetStop(action.generation);
  terms_.SetStop(action.generation);
}

void CoordinatorCore::Persist() {
  if (const auto advance = fence_.Write(gang_->generation())) shells_.record.WriteRecord(*advance);
}

void CoordinatorCore::RecordWritten(uint64_t generation, gang::State state, Nanos asked_at) {
  if (lost()) return;
  const bool first = fence_.Durable(generation);
  shells_.lease.StoreConfirmed(asked_at);
  ending_.Recorded(state == gang::State::kFinished, state == gang::State::kRequeueing);
  MaybeSendStarts();
  MaybeSendFinish();
  MaybeRequeue();
  if (first) shells_.saves.Collect();
}

void CoordinatorCore::Deposed(const std::string& why) {
  if (fence_.AskWhose()) shells_.record.FindSuccessor(why);
}

// ---- the end

void CoordinatorCore::Do(const gang::FinishGang& action) {
  shells_.gang.BuildFinish(action);
  // While the term is being raised no record is on its way.
  if (ending_.Finish(action.succeeded && !fence_.raising(), action.nodes)) shells_.gang.AwaitEndRecord();
  MaybeSendFinish();
}

void CoordinatorCore::Do(const gang::RequeueJob& action) {
  if (const Status may = shells_.slurm.OrderRequeue(action); !may)
    return Feed(gang::RequeueFailed{may.error().message});
  ending_.Requeue();
  shells_.gang.AwaitEndRecord();
  MaybeRequeue();
}

// A host that has stood still hears within a beat that the nodes do not follow it any more.
void CoordinatorCore::EndRecordLate(bool late) {
  if (lost()) return;
  if (!ending_.WaitedLongEnough(late)) return shells_.gang.AwaitEndRecord();
  MaybeSendFinish();
  MaybeRequeue();
}

void CoordinatorCore::MaybeSendFinish() {
  if (lost()) return;
  const std::set<uint32_t> due = ending_.DueFinish(followed());
  if (!due.empty()) shells_.gang.SendFinish(due);
}

// Behind the record that says so: should this coordinator die now, another goes on with it. Nothing of the job is ended before that.
void CoordinatorCore::MaybeRequeue() {
  if (!lost() && ending_.DueRequeue(followed())) shells_.slurm.Requeue();
}

bool CoordinatorCore::followed() const {
  // Nothing has run: nobody else can have taken it over.
  return !leases_ || terms_.quorum() || gang_->generation() == 0;
}

bool CoordinatorCore::over() const {
  return lost() || (began() && !fence_.raising() &&
                    (gang_->state() == gang::State::kFinished || gang_->state() == gang::State::kRequeueing));
}

// ---- nodes

void CoordinatorCore::Registered(uint32_t node, uint64_t started_generation, Starts::Step started_from) {
  starts_.Inherit(started_generation, started_from);
  shells_.lease.Attend(node);
}

void CoordinatorCore::Left(uint32_t node) {
  if (!active()) return;
  // Whatever has ended the link, the lease counts the node's musterd as gone: it may have gone in that moment.
  if (!MUSTER_PLANTED(closed_not_counted)) shells_.lease.NodeClosed(node);
  Feed(gang::NodeLeft{node});
  const gang::Gang::Node& left = gang_->nodes()[node];
  if (left.ended) terms_.Wait(shells_.lease.Now());
  if (left.lost || left.ended) shells_.lease.NodeRemoved(node);
}

void CoordinatorCore::Heard(uint32_t node) {
  terms_.Heard(node, *gang_);
  MaybeRaise();
}

void CoordinatorCore::Silent(const gang::NodeSilent& silent) {
  if (silent.node >= gang_->nodes().size()) return;
  terms_.Wait(shells_.lease.Now());
  Feed(silent);
  if (lost() || !gang_->nodes()[silent.node].lost || MUSTER_PLANTED(silent_keeps_link)) return;
  shells_.gang.CloseLink(silent.node);
  shells_.lease.NodeRemoved(silent.node);
  shells_.gang.MaybeOver();
}

// Its link may be gone: then this is how it is known.
void CoordinatorCore::Stopped(uint32_t node, uint64_t generation) {
  if (generation >= gang_->generation() && node < gang_->nodes().size() && !gang_->nodes()[node].present)
    Feed(gang::NodeStopped{node, gang_->generation()});
}

void CoordinatorCore::Refuses(uint32_t node) {
  if (gang_->nodes()[node].lost) return;
  terms_.Refuses(node);
  shells_.lease.NodeClosed(node);
}

// ---- terms

void CoordinatorCore::SetQuorum(bool quorum) {
  terms_.SetQuorum(quorum);
  if (quorum) {
    MaybeSendFinish();
    MaybeRaise();
  }
  // A gang that has ended needs no witnesses: that they are not heard, or are heard again, is no news.
  const gang::State state = gang_->state();
  if (state == gang::State::kFinished || (state == gang::State::kRequeueing && !quorum)) return;
  shells_.gang.Do(quorum ? gang::Note{"quorum", "most of the gang's witnesses are heard", gang_->generation()}
                         : gang::Note{"quorum_lost",
                                      "most of the gang's witnesses are not heard: nobody's lease is renewed",
                                      gang_->generation()});
}

void CoordinatorCore::SeenTerm(uint64_t term) {
  terms_.SetQuorum(false);  // nothing more comes of it
  Overtaken(term);
}

bool CoordinatorCore::Overtaken(uint64_t term) {
  const bool overtaken = fence_.Seen(term);
  if (overtaken) Deposed(fence_.Newer());
  return overtaken;
}

void CoordinatorCore::StoreHasTerm(uint64_t term, Nanos asked_at) {
  if (!shells_.lease.HasLease()) return;
  if (term == fence_.term()) return shells_.lease.StoreConfirmed(asked_at);
  if (fence_.Seen(term)) shells_.lease.Depose(term);
}

void CoordinatorCore::MaybeRaise() {
  const auto at = active() && shells_.lease.HasLease() ? terms_.RaiseAt(*gang_) : std::nullopt;
  if (at && *at <= shells_.lease.Now()) {
    shells_.lease.RaiseAt({});
    return RaiseTerm();
  }
  shells_.lease.RaiseAt(at);
}

// A new term of the same coordinator: some node cannot come back in this one, or other nodes are to be witnesses.
void CoordinatorCore::RaiseTerm() {
  const auto advance = fence_.Raise();
  if (!advance) return;
  asked_at_ = shells_.lease.Now();
  shells_.record.WriteTerm(*advance, terms_.Next(*gang_));
}

void CoordinatorCore::TermRaised(const Status& raised) {
  if (lost()) return;
  const RecordFence::Raised what = fence_.RaiseOver(raised.ok());
  if (!what.begun) {
    shells_.gang.Do(gang::Note{"term", fmt::format("the term was not raised: {}", raised.error().message),
                               gang_->generation()});
    if (what.owed) Persist();
    CommitWaiting();
    // The lease says it once.
    if (what.overtaken) return Deposed(fence_.Newer());
    terms_.Wait(shells_.lease.Now());  // it is tried again after a while
    shells_.gang.MaybeOver();
    // Whether it was written is not known when the store did not answer: reading tells.
    return shells_.record.AskTerm();
  }
  if (what.overtaken) return Deposed(fence_.Newer());
  shells_.gang.Do(gang::Note{"term", fmt::format("term {} begins", fence_.term()), gang_->generation()});
  terms_.Raised(asked_at_, shells_.lease.Now(), *gang_);
  Lead();
  // The beats of a lost node do not count before it has registered, as in the term before.
  for (uint32_t node = 0; node < gang_->nodes().size(); ++node) {
    if (gang_->nodes()[node].lost) shells_.lease.NodeRemoved(node);
  }
  Persist();
  Carry(gang_->SayAgain());
  CommitWaiting();
  shells_.gang.MaybeOver();
}

// ---- checkpoints

PendingSaves::Now CoordinatorCore::SavesNow() const {
  return {.generation = gang_->generation(),
          .members = static_cast<uint32_t>(gang_->members().size()),
          .world_size = gang_->WorldSize(),
          .settled =
              gang_->state() != gang::State::kRecovering && !fence_.raising() &&
              (fence_.fence().generation == gang_->generation() || MUSTER_PLANTED(commit_under_old_record))};
}

void CoordinatorCore::ShardWritten(const PendingSaves::Written& written, Shard shard) {
  Carry(saves_.OnWritten(SavesNow(), written, std::move(shard)));
}

void CoordinatorCore::ShardFailed(const PendingSaves::Failure& failure) {
  Carry(saves_.OnFailed(SavesNow(), failure));
}

void CoordinatorCore::ShardDelayed(uint64_t generation, uint64_t step, const std::string& why) {
  Carry(saves_.OnDelayed(SavesNow(), generation, step, why));
}

void CoordinatorCore::FailedBefore(uint64_t generation, uint64_t step, const std::string& error) {
  Carry(saves_.OnFailedBefore(generation, step, error));
}

void CoordinatorCore::SaveAgain(uint64_t generation, uint64_t step) {
  if (!lost()) Carry(saves_.Again(SavesNow(), generation, step));
}

// What has been written meanwhile, now that it is known whose shards make a checkpoint, and under which fence.
void CoordinatorCore::CommitWaiting() {
  Carry(saves_.OnSettled(SavesNow()));
}

void CoordinatorCore::Carry(const PendingSaves::Actions& actions) {
  for (const PendingSaves::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

// What the gang would start from now, and what it runs from, stay.
void CoordinatorCore::Do(const PendingSaves::Commit& action) {
  std::set<uint64_t> kept;
  if (starts_.newest()) kept.insert(*starts_.newest());
  if (starts_.from() && !MUSTER_PLANTED(start_not_kept)) kept.insert(*starts_.from());
  shells_.saves.Commit(action, fence_.fence(), kept);
}

bool CoordinatorCore::CommitOver(const Manifest& manifest, const Status& status) {
  using Outcome = PendingSaves::Outcome;
  const uint64_t generation = manifest.fence.generation;
  Outcome outcome = status ? Outcome::kDone : Outcome::kFailed;
  if (!status && status.error().code == Errc::kConflict && generation == gang_->generation()) {
    // The head has another fence. What becomes of the save then is not for this coordinator to say, unless it has moved the
    // fence itself meanwhile.
    if (lost()) return false;
    if (!fence_.Moved(manifest.fence)) {
      Deposed(status.error().message);
      return false;
    }
    outcome = Outcome::kRefused;
  } else if (!status && MayPass(status.error()) && !lost()) {
    outcome = Outcome::kMayPass;
  }
  const PendingSaves::Over over = saves_.OnCommitOver(SavesNow(), generation, manifest.step, outcome,
                                                      status ? "" : status.error().message);
  if (status && !over.again) {
    starts_.Committed(manifest.step);
    shells_.saves.Committed(manifest, over);
    Feed(gang::CheckpointCommitted{manifest.step});
  }
  Carry(over.actions);
  return !status && !over.again;
}

void CoordinatorCore::Do(const gang::RejectCheckpoint& action) {
  starts_.Reject(action.manifest);
  shells_.gang.Do(
      gang::Note{"checkpoint_bad",
                 fmt::format("the checkpoint of step {} does not verify: {}", action.step, action.reason),
                 gang_->generation()});
  shells_.record.MarkBad(action, false);
}

void CoordinatorCore::Marked(const Fence& used, const gang::RejectCheckpoint& bad, const Status& marked,
                             const std::optional<std::vector<Listed>>& good) {
  if (lost()) return;
  if (!marked && marked.error().code == Errc::kConflict) {
    if (!fence_.Moved(used)) return Deposed(marked.error().message);
    return shells_.record.MarkBad(bad, true);
  }
  // Also when the store could not say so: this gang does not start from it again. One that has left the list needs no mark.
  Starts::Step newest;
  if (good) {
    for (const Listed& checkpoint : *good) {
      if (!starts_.IsRejected(checkpoint.manifest)) newest = checkpoint.step;
    }
  } else if (starts_.newest() != bad.step) {
    newest = starts_.newest();
  }
  starts_.RejectOver(newest);
  MaybeSendStarts();
}

}  // namespace muster
