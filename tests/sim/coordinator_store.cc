// Coordinator's dealings with the store: the record, and daemon/coordinator/checkpoints.cc.
#include <algorithm>
#include <utility>

#include "base/planted.h"
#include "daemon/coordinator/record_of_gang.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kStoreRetry = 300 * kMs;
constexpr Nanos kForCommits = 500 * kMs;
constexpr Nanos kLook = 10 * kMs;

}  // namespace

// ---- the record

GangRecord Coordinator::Record() const {
  return RecordOf({daemon_.sim.options.gang_job, daemon_.sim.options.gang_job.hosts[daemon_.host.index()],
                   fence_, gang_ ? &*gang_ : nullptr, starts_, terms_});
}

void Coordinator::Do(const gang::Persist& /*action*/) {
  const auto advance = fence_.Write(gang_->generation());
  if (!advance) return;
  Queue(records_, [this, from = advance->from, to = advance->to,
                   record = std::make_shared<GangRecord>(Record())](const std::function<void()>& done) {
    const auto persist = [this, from, to, record, done] {
      AdvanceForSure(
          {from, to, record}, [this] { return !fence_.lost(); },
          [this, record, to, done](Store::Answer answer, Nanos asked, const Store::Head& /*head*/) {
            if (answer == Store::Answer::kConflict) Deposed();
            if (answer == Store::Answer::kDone) Persisted(*record, to.generation, asked);
            done();
          });
    };
    if (to.generation == from.generation) return persist();
    AwaitCommits(world_.now() + kForCommits, persist);
  });
}

// They come before the next generation's record, under which they would be refused, as long as that does not take long.
void Coordinator::AwaitCommits(Nanos until, const std::function<void()>& then) {
  if (commits_ == 0 || world_.now() >= until) return then();
  Post(kLook, [this, until, then] { AwaitCommits(until, then); });
}

void Coordinator::Persisted(const GangRecord& record, uint64_t generation, Nanos asked) {
  fence_.Durable(generation);
  if (daemon_.lead() != nullptr) {
    lease::Output out;
    daemon_.lead()->StoreConfirmed(asked, daemon_.host.Local(), &out);
    daemon_.Pump(&out);
  }
  ending_.Recorded(Is(record, gang::State::kFinished), Is(record, gang::State::kRequeueing));
  if (Leads()) MaybeSendStarts();
  if (Leads()) MaybeSendFinish();
  if (Leads()) MaybeRequeue();
}

void Coordinator::AdvanceForSure(Advance advance, std::function<bool()> go_on,
                                 std::function<void(Store::Answer, Nanos asked, const Store::Head&)> then) {
  const Nanos asked = daemon_.host.Local();
  const auto change = [&sim = daemon_.sim, advance](Store::Head& head) {
    if (advance.unknown && head.fence == advance.to && head.record == advance.record) return true;
    if (head.fence != advance.from && !MUSTER_PLANTED(written_unseen)) return false;
    if (advance.seen && head.record != *advance.seen) return false;
    sim.invariants.Written(head.fence, advance.to, advance.to.term);
    head.fence = advance.to;
    head.record = advance.record;
    return true;
  };
  Ask(change, [this, advance = std::move(advance), go_on = std::move(go_on), then = std::move(then), asked](
                  Store::Answer answer, const Store::Head& head) mutable {
    if (answer != Store::Answer::kNone || !go_on()) return then(answer, asked, head);
    Post(kStoreRetry, [this, advance = std::move(advance), go_on = std::move(go_on), then = std::move(then),
                       asked]() mutable {
      if (!go_on()) return then(Store::Answer::kNone, asked, {});
      advance.unknown = true;
      AdvanceForSure(std::move(advance), std::move(go_on), std::move(then));
    });
  });
}

// ---- checkpoints

PendingSaves::Now Coordinator::SavesNow() const {
  return {.generation = gang_->generation(),
          .members = static_cast<uint32_t>(gang_->members().size()),
          .world_size = gang_->WorldSize(),
          .settled =
              gang_->state() != gang::State::kRecovering && !fence_.raising() &&
              (fence_.fence().generation == gang_->generation() || MUSTER_PLANTED(commit_under_old_record))};
}

void Coordinator::OnShard(const ShardWritten& written) {
  Shard shard;
  shard.rank = written.rank;
  Carry(saves_.OnWritten(SavesNow(), {.generation = written.generation, .step = written.step}, shard));
}

void Coordinator::CommitWaiting() {
  Carry(saves_.OnSettled(SavesNow()));
}

void Coordinator::Carry(const PendingSaves::Actions& actions) {
  for (const PendingSaves::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Coordinator::Do(const PendingSaves::Commit& action) {
  std::set<uint64_t> kept;
  if (starts_.newest()) kept.insert(*starts_.newest());
  if (starts_.from() && !MUSTER_PLANTED(start_not_kept)) kept.insert(*starts_.from());
  Checkpoint checkpoint{.step = action.manifest->step, .generation = fence_.fence().generation};
  for (const Shard& shard : action.manifest->shards) checkpoint.shards.insert(shard.rank);
  checkpoint.again = action.attempt > 1 && !MUSTER_PLANTED(double_commit);
  ++commits_;
  Queue(committer_, [this, fence = fence_.fence(), checkpoint, kept](const std::function<void()>& done) {
    AskToCommit(fence, checkpoint, kept, done);
  });
}

void Coordinator::Do(const PendingSaves::Tell& action) {
  Broadcast(fence_.term(), Committed{action.generation, action.step, action.error.empty()});
}

void Coordinator::Do(const PendingSaves::Wait& action) {
  Post(action.time / std::chrono::nanoseconds(1), [this, generation = action.generation, step = action.step] {
    if (Leads()) Carry(saves_.Again(SavesNow(), generation, step));
  });
}

void Coordinator::Do(const PendingSaves::Note& action) {
  world_.Log("n{}: {}: {}", daemon_.host.index(), action.kind, action.text);
}

// Not before the generation's record is in the store.
void Coordinator::AskToCommit(const Fence& fence, const Checkpoint& checkpoint,
                              const std::set<uint64_t>& kept, const std::function<void()>& done) {
  const auto over = [this, done] {
    --commits_;
    done();
  };
  if (!Leads()) return over();
  if (fence_.durable() < fence.generation)
    return Post(kLook, [this, fence, checkpoint, kept, done] { AskToCommit(fence, checkpoint, kept, done); });
  const auto change = [&sim = daemon_.sim, fence, checkpoint, kept](Store::Head& head) {
    const bool done = sim.store.Commit(head, fence, checkpoint, kept);
    if (done && head.fence == fence) sim.invariants.Committed(head, checkpoint);
    return done;
  };
  Ask(change, [this, fence, step = checkpoint.step, over](Store::Answer answer, const Store::Head& /*head*/) {
    if (Leads()) CommitDone(answer, fence, step);
    over();
  });
}

void Coordinator::CommitDone(Store::Answer answer, const Fence& fence, uint64_t step) {
  using Outcome = PendingSaves::Outcome;
  const bool good = answer == Store::Answer::kDone;
  Outcome outcome = good                             ? Outcome::kDone
                    : answer == Store::Answer::kNone ? Outcome::kMayPass
                                                     : Outcome::kFailed;
  if (answer == Store::Answer::kConflict && fence.generation == gang_->generation()) {
    if (!fence_.Moved(fence)) return Deposed();
    outcome = Outcome::kRefused;
  }
  const PendingSaves::Over over = saves_.OnCommitOver(SavesNow(), fence.generation, step, outcome,
                                                      good ? "" : "the store does not take it");
  if (good) {
    daemon_.sim.invariants.KnownCommitted(fence_.term(), fence.generation, step);
    daemon_.sim.invariants.GoesOn(*gang_, fence_.term(), terms_.lead().witnesses);
    starts_.Committed(step);
    Feed(gang::CheckpointCommitted{step});
  }
  Carry(over.actions);
}

}  // namespace muster::sim
