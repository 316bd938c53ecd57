// Coordinator's dealings with the store: the record, and daemon/coordinator/checkpoints.cc.
#include <algorithm>
#include <utility>

#include "tests/sim/coordinator.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kRetry = 300 * kMs;
constexpr Nanos kForCommits = 500 * kMs;
constexpr Nanos kLook = 10 * kMs;
constexpr Nanos kCommitPause = 250 * kMs;
constexpr int kMostDoublings = 4;
constexpr int kMostWaiting = 2;  // commits

}  // namespace

// ---- the record

Record Coordinator::MakeRecord() const {
  Record record;
  record.coordinator = daemon_.host.index();
  record.restore = restore_;
  record.witnesses = witnesses_;
  record.former = former_;
  if (!gang_) return record;
  record.state = gang_->state();
  record.memory = gang_->Remember();
  if (gang_->state() == gang::State::kFinished) record.finish = Finish{gang_->succeeded()};
  return record;
}

void Coordinator::Do(const gang::Persist& /*action*/) {
  if (raising_) {
    persist_again_ = true;
    return;
  }
  const Fence from = fence_;
  fence_.generation = std::max(fence_.generation, gang_->generation());
  Queue(records_, [this, from, to = fence_, record = MakeRecord()](const std::function<void()>& done) {
    const auto persist = [this, from, to, record, done] { Persist(from, to, record, done); };
    if (to.generation == from.generation) return persist();
    AwaitCommits(world_.now() + kForCommits, persist);
  });
}

// They come before the next generation's record, under which they would be refused, as long as that does not take long.
void Coordinator::AwaitCommits(Nanos until, const std::function<void()>& then) {
  if (commits_ == 0 || world_.now() >= until) return then();
  Post(kLook, [this, until, then] { AwaitCommits(until, then); });
}

// An answer that did not come says nothing: the next try finds either fence.
void Coordinator::Persist(Fence from, Fence to, const Record& record, std::function<void()> done) {
  const Nanos asked = daemon_.host.Local();
  const auto change = [from, to, record](Store::Head& head) {
    if (head.fence != from && head.fence != to) return false;
    head.fence = to;
    head.record = record;
    return true;
  };
  daemon_.sim.store.Ask(
      daemon_.host.index(), change,
      [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_), from, to, record, done, asked](
          Store::Answer answer, const Store::Head& /*head*/) {
        if (daemon.expired() || alive.expired()) return;
        Post(0, [this, answer, from, to, record, done, asked] {
          if (answer == Store::Answer::kConflict) return Deposed();
          if (answer == Store::Answer::kNone) {
            return Post(kRetry, [this, from, to, record, done] { Persist(from, to, record, done); });
          }
          durable_generation_ = std::max(durable_generation_, to.generation);
          if (daemon_.lead() != nullptr) {
            lease::Output out;
            daemon_.lead()->StoreConfirmed(asked, daemon_.host.Local(), &out);
            daemon_.Pump(&out);
          }
          end_durable_ |= record.finish.has_value();
          if (Leads()) MaybeSendStarts();
          if (Leads()) MaybeSendFinish();
          done();
        });
      });
}

// ---- checkpoints

void Coordinator::OnShard(const ShardWritten& written) {
  if (written.generation != gang_->generation()) return;
  const bool twice = world_.Has(Bug::kDoubleCommit);
  if (committed_.contains(written.step) && !twice) {
    return Broadcast(fence_.term, Committed{written.generation, written.step, true});
  }
  Pending& pending = pending_[written.step];
  if (pending.generation != written.generation) pending = Pending{.generation = written.generation};
  if ((pending.committing && !twice) || written.rank >= gang_->WorldSize()) return;
  pending.shards.insert(written.rank);
  MaybeCommit(written.step);
}

void Coordinator::MaybeCommit(uint64_t step) {
  Pending& pending = pending_[step];
  // While recovering it is not known yet which nodes make up the generation, nor is the record the generation's. While the
  // term is being raised neither fence is certain to be good.
  if (gang_->state() == gang::State::kRecovering) return;
  if (raising_ || gang_->WorldSize() == 0 || pending.shards.size() < gang_->WorldSize()) return;
  if (pending.committing && !world_.Has(Bug::kDoubleCommit)) return;
  pending.committing = true;
  TryCommit(step);
}

void Coordinator::CommitWaiting() {
  std::erase_if(pending_, [&](const auto& item) { return item.second.generation != gang_->generation(); });
  std::vector<uint64_t> steps;
  for (const auto& [step, pending] : pending_) steps.push_back(step);
  for (const uint64_t step : steps) MaybeCommit(step);
}

void Coordinator::TryCommit(uint64_t step) {
  Pending& pending = pending_[step];
  std::set<uint64_t> kept;
  if (latest_) kept.insert(*latest_);
  if (restore_ && !world_.Has(Bug::kStartNotKept)) kept.insert(*restore_);
  const bool again = ++pending.attempts > 1 && !world_.Has(Bug::kDoubleCommit);
  const Checkpoint checkpoint{step, pending.generation, pending.shards.size(), again};
  ++commits_;
  Queue(committer_, [this, fence = fence_, checkpoint, kept](const std::function<void()>& done) {
    AskToCommit(fence, checkpoint, kept, done);
  });
}

// Not before the generation's record is in the store.
void Coordinator::AskToCommit(const Fence& fence, const Checkpoint& checkpoint,
                              const std::set<uint64_t>& kept, const std::function<void()>& done) {
  const auto over = [this, done] {
    --commits_;
    done();
  };
  if (!Leads()) return over();
  if (durable_generation_ < fence.generation)
    return Post(kLook, [this, fence, checkpoint, kept, done] { AskToCommit(fence, checkpoint, kept, done); });
  const auto change = [&sim = daemon_.sim, fence, checkpoint, kept](Store::Head& head) {
    const bool done = sim.store.Commit(head, fence, checkpoint, kept);
    if (done && head.fence == fence) sim.invariants.Committed(head, checkpoint);
    return done;
  };
  daemon_.sim.store.Ask(daemon_.host.index(), change,
                        [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_), fence,
                         step = checkpoint.step, over](Store::Answer answer, const Store::Head& /*head*/) {
                          if (daemon.expired() || alive.expired()) return;
                          Post(0, [this, answer, fence, step, over] {
                            if (Leads()) CommitDone(answer, fence, step);
                            over();
                          });
                        });
}

void Coordinator::CommitDone(Store::Answer answer, const Fence& fence, uint64_t step) {
  const bool current = fence.generation == gang_->generation();
  const bool good = answer == Store::Answer::kDone;
  if (answer == Store::Answer::kConflict && current) {
    // Unless it has moved the fence itself meanwhile, it is not for this coordinator to say what becomes of the save.
    if ((fence == fence_ && !raising_) || world_.Has(Bug::kOwnFenceDeposes)) return Deposed();
    return TryCommitSoon(fence.generation, step);
  }
  if (answer == Store::Answer::kNone && CommitLater(fence, step)) return;
  if (current) pending_.erase(step);
  if (good && current) committed_.insert(step);
  if (good && (!latest_ || *latest_ < step)) latest_ = step;
  if (good) Feed(gang::CheckpointCommitted{step});
  Broadcast(fence_.term, Committed{fence.generation, step, good});
}

// The store may take it later, or have taken it. Of those that wait only the newest are kept.
bool Coordinator::CommitLater(const Fence& fence, uint64_t step) {
  const auto found = pending_.find(step);
  if (fence.generation != gang_->generation() || found == pending_.end()) return false;
  const auto newer = std::count_if(
      found, pending_.end(), [&](const auto& item) { return item.first > step && item.second.committing; });
  if (newer >= kMostWaiting || (!committed_.empty() && *committed_.rbegin() > step)) return false;
  TryCommitSoon(fence.generation, step);
  return true;
}

void Coordinator::TryCommitSoon(uint64_t generation, uint64_t step) {
  const auto found = pending_.find(step);
  if (found == pending_.end()) return;
  Post(kCommitPause * (1 << std::min(found->second.attempts - 1, kMostDoublings)), [this, generation, step] {
    if (!Leads() || generation != gang_->generation()) return;
    const auto waiting = pending_.find(step);
    if (waiting == pending_.end() || waiting->second.generation != generation) return;
    if (gang_->state() == gang::State::kRecovering || raising_) return TryCommitSoon(generation, step);
    TryCommit(step);
  });
}

}  // namespace muster::sim
