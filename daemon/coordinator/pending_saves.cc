#include "daemon/coordinator/pending_saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/planted.h"

namespace muster {
namespace {

// Before a commit is tried again; doubles so often.
constexpr std::chrono::milliseconds kCommitPause{250};
constexpr int kMostDoublings = 4;
constexpr int kMostWaiting = 2;  // commits

// So often must a save be overtaken by members that are not to make it any more: one that is handed over again after a
// restart comes a little behind a newer one.
constexpr int kOvertaken = 2;

}  // namespace

PendingSaves::Actions PendingSaves::OnWritten(const Now& now, const Written& written, Shard shard) {
  if (written.generation != now.generation) return {};  // of an older one: it will never be complete
  // A member whose musterd has restarted saves again what it was not told to be committed.
  if (std::optional<Tell> known = Known(written.generation, written.step);
      known && !MUSTER_PLANTED(double_commit))
    return {*std::move(known)};
  Pending& pending = pending_[written.step];
  if (pending.generation != written.generation) pending = Pending{.generation = written.generation};
  if ((pending.manifest && !MUSTER_PLANTED(double_commit)) || shard.rank >= now.members) return {};
  if (written.older_to_come) pending.older_to_come.insert(shard.rank);
  pending.held_ns = std::max(pending.held_ns, written.held_ns);
  pending.written_ns = std::max(pending.written_ns, written.written_ns);
  pending.shards[shard.rank] = std::move(shard);
  Actions out;
  MaybeCommit(now, written.step, &out);
  return out;
}

// What is known of the step already: who comes later with a shard of it, or comes again because he was not told, is told.
std::optional<PendingSaves::Tell> PendingSaves::Known(uint64_t generation, uint64_t step) const {
  if (IsCommitted(generation, step)) return Tell{generation, step, ""};
  if (const std::string* why = failed_.Find(generation, step)) return Tell{generation, step, *why};
  return std::nullopt;
}

void PendingSaves::AddCommitted(uint64_t generation, uint64_t step) {
  if (std::exchange(committed_in_, generation) != generation) committed_.Clear();
  committed_.Add(step);
}

const RecentSteps& PendingSaves::Committed(uint64_t generation) const {
  static const RecentSteps kNone;
  return generation == committed_in_ ? committed_ : kNone;
}

// For all members, and for good: what ails one member's save mostly ails all. Of those that were given up `checkpoint_delayed`
// tells; and what was lost of a step below one that is committed is of no interest.
PendingSaves::Actions PendingSaves::OnFailed(const Now& now, const Failure& failure) {
  if (failure.generation != now.generation) return {};
  if (std::optional<Tell> known = Known(failure.generation, failure.step)) return {*std::move(known)};
  // The save's end does not hang on this: it is being committed, or the shard had come before its musterd was restarted.
  if (const auto pending = pending_.find(failure.step);
      pending != pending_.end() && pending->second.generation == failure.generation &&
      (pending->second.manifest || pending->second.shards.contains(failure.rank)))
    return {};
  Actions out;
  const bool old = failure.lost && Committed(failure.generation).Highest().value_or(0) > failure.step;
  if (failure.lost ? !old : !failure.given_up)
    out.emplace_back(Note{"checkpoint_failed",
                          fmt::format("step {}, rank {}: {}", failure.step, failure.rank, failure.error)});
  if (!failure.given_up) out.emplace_back(StoreRefuses{});
  GiveUp(failure.generation, failure.step, failure.error, &out);
  return out;
}

PendingSaves::Actions PendingSaves::OnDelayed(const Now& now, uint64_t generation, uint64_t step,
                                              const std::string& why) {
  Actions out;
  if (generation == now.generation) Delayed(step, why, &out);
  return out;
}

// Once, until there is a commit: each save meets the same store.
void PendingSaves::Delayed(uint64_t step, const std::string& why, Actions* out) {
  if (delay_told_) return;
  delay_told_ = step;
  out->emplace_back(Note{"checkpoint_delayed",
                         fmt::format("step {}: {}; training goes on, the newest saves stay in memory and "
                                     "are tried again",
                                     step, why)});
}

PendingSaves::Actions PendingSaves::OnFailedBefore(uint64_t generation, uint64_t step,
                                                   const std::string& error) {
  const auto pending = pending_.find(step);
  const bool awaited = pending != pending_.end() && pending->second.generation == generation;
  if (awaited && pending->second.manifest) return {};
  if (IsCommitted(generation, step) || !failed_.Add(generation, step, error) || !awaited) return {};
  pending_.erase(pending);
  return {Tell{generation, step, error}};
}

// While recovering it is not known yet which nodes make up the generation: agents say again what they have saved with their
// first words. While the term is being raised neither fence is certain to be good.
void PendingSaves::MaybeCommit(const Now& now, uint64_t step, Actions* out) {
  Pending& pending = pending_[step];
  if (!now.settled || now.world_size == 0) return;
  if (pending.manifest && !MUSTER_PLANTED(double_commit)) return;
  pending.shards.erase(pending.shards.lower_bound(now.world_size), pending.shards.end());
  const size_t needed = now.world_size - (MUSTER_PLANTED(commit_without_one) ? 1 : 0);
  if (pending.shards.size() < needed) return;
  pending.manifest = std::make_shared<Manifest>();
  pending.manifest->step = step;
  pending.manifest->world_size = now.world_size;
  for (auto& [rank, shard] : pending.shards) pending.manifest->shards.push_back(std::move(shard));
  if (!MUSTER_PLANTED(double_commit)) pending.shards.clear();
  out->emplace_back(Commit{pending.manifest, ++pending.attempts});
}

PendingSaves::Actions PendingSaves::OnSettled(const Now& now) {
  std::erase_if(pending_, [&](const auto& item) { return item.second.generation != now.generation; });
  Actions out;
  std::vector<uint64_t> steps;
  for (const auto& [step, pending] : pending_) steps.push_back(step);
  for (const uint64_t step : steps) MaybeCommit(now, step, &out);
  return out;
}

PendingSaves::Actions PendingSaves::Again(const Now& now, uint64_t generation, uint64_t step) {
  const auto waiting = pending_.find(step);
  if (generation != now.generation || waiting == pending_.end() || !waiting->second.manifest ||
      waiting->second.generation != generation)
    return {};
  Actions out;
  if (!now.settled) {
    WaitForAgain(generation, step, &out);
  } else {
    out.emplace_back(Commit{waiting->second.manifest, ++waiting->second.attempts});
  }
  return out;
}

void PendingSaves::WaitForAgain(uint64_t generation, uint64_t step, Actions* out) const {
  const auto found = pending_.find(step);
  if (found == pending_.end()) return;
  const int doublings = std::clamp(found->second.attempts - 1, 0, kMostDoublings);
  out->emplace_back(Wait{generation, step, kCommitPause * (1 << doublings)});
}

PendingSaves::Over PendingSaves::OnCommitOver(const Now& now, uint64_t generation, uint64_t step,
                                              Outcome outcome, const std::string& error) {
  Over over;
  const bool current = generation == now.generation;
  if (outcome == Outcome::kRefused && current) {
    over.again = true;
    WaitForAgain(generation, step, &over.actions);
    return over;
  }
  if (outcome == Outcome::kMayPass && CommitLater(now, generation, step, error, &over.actions)) {
    over.again = true;
    return over;
  }
  Pending done;
  if (current) {
    if (auto pending = pending_.extract(step)) done = std::move(pending.mapped());
  }
  over.held_ns = done.held_ns;
  over.written_ns = done.written_ns;
  if (outcome != Outcome::kDone) {
    over.actions.emplace_back(Note{"checkpoint_failed", fmt::format("step {}: {}", step, error)});
    GiveUp(generation, step, error, &over.actions);
    return over;
  }
  if (delay_told_ && *delay_told_ <= step) delay_told_.reset();
  if (current) AddCommitted(generation, step);
  over.actions.emplace_back(Tell{generation, step, ""});
  if (current) GiveUpOvertaken(now, step, done.older_to_come, &over.actions);
  return over;
}

// A store that is full or away may take it later. Of those that wait only the newest are kept, as in the members' memory.
bool PendingSaves::CommitLater(const Now& now, uint64_t generation, uint64_t step, const std::string& error,
                               Actions* out) {
  const auto found = pending_.find(step);
  if (generation != now.generation || found == pending_.end() || found->second.generation != generation ||
      !found->second.manifest)
    return false;
  Delayed(step, error, out);
  const auto newer = std::count_if(found, pending_.end(), [&](const auto& item) {
    return item.first > step && item.second.generation == generation && item.second.manifest;
  });
  if (newer >= kMostWaiting || Committed(generation).Highest().value_or(0) > step) {
    GiveUp(generation, step, "it was given up for newer ones: " + error, out);
  } else {
    WaitForAgain(generation, step, out);
  }
  return true;
}

void PendingSaves::GiveUp(uint64_t generation, uint64_t step, const std::string& why, Actions* out) {
  if (const auto found = pending_.find(step);
      found != pending_.end() && found->second.generation == generation)
    pending_.erase(found);
  failed_.Add(generation, step, why);
  out->emplace_back(Tell{generation, step, why});
}

// Nothing comes of a save that a member has skipped, though the others wait for it. Who makes a newer one, and is not writing
// an older one still, is not to make that any more.
void PendingSaves::GiveUpOvertaken(const Now& now, uint64_t by, const std::set<uint32_t>& older_to_come,
                                   Actions* out) {
  const auto to_come = [&](const Pending& pending) {
    return pending.shards.size() >= now.world_size ||
           std::any_of(older_to_come.begin(), older_to_come.end(),
                       [&](uint32_t rank) { return !pending.shards.contains(rank); });
  };
  for (auto at = pending_.begin(); at != pending_.end() && at->first < by;) {
    const auto now_at = at++;
    Pending& pending = now_at->second;
    if (pending.generation != now.generation || pending.manifest || to_come(pending)) continue;
    if (++pending.overtaken < kOvertaken) continue;
    GiveUp(now.generation, now_at->first,
           "not all members have saved it, and two newer checkpoints are committed", out);
  }
}

void PendingSaves::BeginGeneration() {
  pending_.clear();
  committed_.Clear();
}

bool PendingSaves::Committing(uint64_t generation) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& item) {
    return item.second.generation == generation && item.second.manifest;
  });
}

}  // namespace muster
