// Coordinator's dealings with the store: the record, and daemon/coordinator/checkpoints.cc.
#include <algorithm>
#include <utility>

#include "tests/sim/coordinator.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kRetry = 300 * kMs;

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
  Queue([this, from, to = fence_, record = MakeRecord()](const std::function<void()>& done) {
    Persist(from, to, record, done);
  });
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
  if ((pending.committing && !twice) || written.rank >= gang_->WorldSize()) return;
  pending.shards.insert(written.rank);
  MaybeCommit(written.step);
}

void Coordinator::MaybeCommit(uint64_t step) {
  Pending& pending = pending_[step];
  // While the term is being raised neither fence is certain to be good.
  if (raising_ || pending.shards.size() < gang_->WorldSize()) return;
  if (pending.committing && !world_.Has(Bug::kDoubleCommit)) return;
  pending.committing = true;
  Commit(step);
}

void Coordinator::CommitWaiting() {
  std::vector<uint64_t> steps;
  for (const auto& [step, pending] : pending_) steps.push_back(step);
  for (const uint64_t step : steps) MaybeCommit(step);
}

void Coordinator::Commit(uint64_t step) {
  const Fence mine{fence_.term, gang_->generation()};
  std::set<uint64_t> kept;
  if (latest_) kept.insert(*latest_);
  if (restore_ && !world_.Has(Bug::kStartNotKept)) kept.insert(*restore_);
  Queue([this, fence = mine, step, kept](const std::function<void()>& done) {
    const auto change = [&sim = daemon_.sim, fence, step, kept](Store::Head& head) {
      const bool done = sim.store.Commit(head, fence, step, kept);
      if (done) sim.invariants.Committed(head, fence);
      return done;
    };
    daemon_.sim.store.Ask(daemon_.host.index(), change,
                          [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_), fence, step, done](
                              Store::Answer answer, const Store::Head& /*head*/) {
                            if (daemon.expired() || alive.expired()) return;
                            Post(0, [this, answer, fence, step, done] {
                              const bool good = answer == Store::Answer::kDone;
                              if (Leads()) {
                                const bool current = fence.generation == gang_->generation();
                                if (current) pending_.erase(step);
                                if (good && current) committed_.insert(step);
                                if (good && (!latest_ || *latest_ < step)) latest_ = step;
                                if (good) Feed(gang::CheckpointCommitted{step});
                                Broadcast(fence_.term, Committed{fence.generation, step, good});
                              }
                              done();
                            });
                          });
  });
}

}  // namespace muster::sim
