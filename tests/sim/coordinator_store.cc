// Coordinator's dealings with the store, as of daemon/coordinator/record_side.cc and checkpoint_side.cc.
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
  const GangJob& job = daemon_.sim.options.gang_job;
  return core_.Record(job, job.hosts[daemon_.host.index()]);
}

void Coordinator::WriteRecord(const RecordFence::Advance& advance) {
  Queue(records_,
        [this, from = advance.from, to = advance.to, record = std::make_shared<GangRecord>(Record()),
         state = gang().state()](const std::function<void()>& done) {
          const auto persist = [this, from, to, record, state, done] {
            AdvanceForSure(
                {from, to, record}, [this] { return !core_.lost(); },
                [this, state, to, done](Store::Answer answer, Nanos asked, const Store::Head& /*head*/) {
                  if (answer == Store::Answer::kConflict) core_.Deposed("");
                  if (answer == Store::Answer::kDone) core_.RecordWritten(to.generation, state, asked);
                  done();
                });
          };
          if (to.generation == from.generation) return persist();
          AwaitCommits(world_.now() + kForCommits, persist);
        });
}

void Coordinator::WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) {
  auto record = std::make_shared<GangRecord>(Record());
  record->term = advance.to.term;
  SetWitnesses(sets, record.get());
  Queue(records_, [this, advance, record](const std::function<void()>& done) {
    AdvanceForSure(
        {advance.from, advance.to, record},
        [this] { return !core_.lost() && !MUSTER_PLANTED(raise_asked_once); },
        [this, done, to = advance.to](Store::Answer answer, Nanos /*asked*/, const Store::Head& /*head*/) {
          if (answer == Store::Answer::kDone) {
            if (!core_.lost()) daemon_.sim.invariants.Coordinates(to.term, origin_.promised);
            core_.TermRaised({});
          } else {
            core_.TermRaised(Error{Errc::kUnavailable, "the store does not answer"});
          }
          done();
        });
  });
}

void Coordinator::AskTerm() {
  if (std::exchange(confirming_, true)) return;
  Look([this, asked = Now()](Store::Answer answer, const Store::Head& head) {
    confirming_ = false;
    if (answer == Store::Answer::kDone) core_.StoreHasTerm(head.fence.term, asked);
  });
}

// They come before the next generation's record, under which they would be refused, as long as that does not take long.
void Coordinator::AwaitCommits(Nanos until, const std::function<void()>& then) {
  if (commits_ == 0 || world_.now() >= until) return then();
  Post(kLook, [this, until, then] { AwaitCommits(until, then); });
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

void Coordinator::Commit(const PendingSaves::Commit& action, const Fence& fence,
                         const std::set<uint64_t>& kept) {
  Manifest manifest = *action.manifest;
  manifest.fence = fence;
  Checkpoint checkpoint{.step = manifest.step, .generation = fence.generation};
  for (const Shard& shard : manifest.shards) checkpoint.shards.insert(shard.rank);
  checkpoint.again = action.attempt > 1 && !MUSTER_PLANTED(double_commit);
  ++commits_;
  Queue(committer_, [this, manifest, checkpoint, kept](const std::function<void()>& done) {
    AskToCommit(manifest, checkpoint, kept, done);
  });
}

void Coordinator::Do(const PendingSaves::Tell& action) {
  Broadcast(term(), sim::Committed{action.generation, action.step, action.error.empty()});
}

void Coordinator::Do(const PendingSaves::Wait& action) {
  Post(action.time / std::chrono::nanoseconds(1),
       [this, generation = action.generation, step = action.step] { core_.SaveAgain(generation, step); });
}

void Coordinator::Do(const PendingSaves::Note& action) {
  world_.Log("n{}: {}: {}", daemon_.host.index(), action.kind, action.text);
}

// Not before the generation's record is in the store.
void Coordinator::AskToCommit(const Manifest& manifest, const Checkpoint& checkpoint,
                              const std::set<uint64_t>& kept, const std::function<void()>& done) {
  const auto over = [this, done] {
    --commits_;
    done();
  };
  if (!Leads()) return over();
  const Fence& fence = manifest.fence;
  if (core_.fence().durable() < fence.generation)
    return Post(kLook,
                [this, manifest, checkpoint, kept, done] { AskToCommit(manifest, checkpoint, kept, done); });
  const auto change = [&sim = daemon_.sim, fence, checkpoint, kept](Store::Head& head) {
    const bool done = sim.store.Commit(head, fence, checkpoint, kept);
    if (done && head.fence == fence) sim.invariants.Committed(head, checkpoint);
    return done;
  };
  Ask(change, [this, manifest, over](Store::Answer answer, const Store::Head& /*head*/) {
    Status status;
    if (answer == Store::Answer::kNone) status = Error{Errc::kUnavailable, "the store does not take it"};
    if (answer == Store::Answer::kConflict) status = Error{Errc::kConflict, "the store does not take it"};
    if (Leads()) core_.CommitOver(manifest, status);
    over();
  });
}

void Coordinator::Committed(const Manifest& manifest, const PendingSaves::Over& /*over*/) {
  daemon_.sim.invariants.KnownCommitted(term(), manifest.fence.generation, manifest.step);
  daemon_.sim.invariants.GoesOn(gang(), term(), core_.terms().lead().witnesses);
}

}  // namespace muster::sim
