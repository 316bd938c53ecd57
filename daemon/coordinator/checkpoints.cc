// Checkpoints: collects the shards of a step, and commits it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/crash_point.h"
#include "ceph/catalog/object_names.h"
#include "daemon/config/configured_retention.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/proto/shard_message.h"

namespace muster {
namespace {

// Before a commit is tried again; doubles so often.
constexpr std::chrono::milliseconds kCommitPause{250};
constexpr int kMostDoublings = 4;
constexpr int kMostWaiting = 2;  // commits

// So often must a save be overtaken by members that are not to make it any more: one that is handed over again after a
// restart comes a little behind a newer one.
constexpr int kOvertaken = 2;
constexpr size_t kMostWritten = 4;  // commits

}  // namespace

void Coordinator::ShardWritten(const v1::ShardWritten& written) {
  const auto answer = [&](const std::string& error) {
    TellCommitted(written.generation(), written.step(), error);
  };
  if (written.generation() != gang_->generation()) return;  // of an older one: it will never be complete
  if (over_called_) return;                                 // what is not committed now is removed
  // A member whose musterd has restarted saves again what it was not told to be committed.
  if (committed_.Has(written.step())) return answer("");
  // Who comes later with a shard of it, or comes again because he was not told.
  if (const std::string* why = failed_.Find(written.generation(), written.step())) return answer(*why);
  if (!written.error().empty()) {
    if (WillBeTold(written)) return;
    SaveFailed(written);
    if (!written.given_up()) {
      storage_full_ = true;
      WatchStorage();
    }
    pending_.erase(written.step());
    return answer(written.error());
  }
  Shard shard = TakeShard(written.shard());
  Pending& pending = pending_[written.step()];
  if (pending.generation != written.generation()) pending = Pending{.generation = written.generation()};
  if (pending.committing || shard.rank >= gang_->members().size()) return;
  if (written.older_to_come()) pending.older_to_come.insert(shard.rank);
  pending.held_ns = std::max(pending.held_ns, written.held_ns());
  pending.written_ns = std::max(pending.written_ns, written.written_ns());
  pending.shards[shard.rank] = std::move(shard);
  MaybeCommit(written.step());
}

void Coordinator::ShardDelayed(const v1::ShardDelayed& delayed) {
  if (delayed.generation() != gang_->generation()) return;
  CheckpointDelayed(delayed.step(), delayed.error());
}

// Once, until there is a commit: each save meets the same store.
void Coordinator::CheckpointDelayed(uint64_t step, const std::string& why) {
  if (delay_told_) return;
  delay_told_ = step;
  AddHistory("checkpoint_delayed",
             fmt::format("step {}: {}; training goes on, the newest saves stay in memory and are tried again",
                         step, why));
}

// Whether that save's end does not hang on what `written` says: it is being committed, or the shard had come before its musterd
// was restarted.
bool Coordinator::WillBeTold(const v1::ShardWritten& written) const {
  const auto pending = pending_.find(written.step());
  if (pending == pending_.end() || pending->second.generation != written.generation()) return false;
  return pending->second.committing || pending->second.shards.contains(written.shard().rank());
}

// For all members, and for good: what ails one member's save mostly ails all. Of those that were given up `checkpoint_delayed`
// tells; and what was lost of a step below one that is committed is of no interest.
void Coordinator::SaveFailed(const v1::ShardWritten& written) {
  const bool old = written.lost() && committed_.Highest().value_or(0) > written.step();
  if (written.lost() ? !old : !written.given_up()) {
    AddHistory("checkpoint_failed",
               fmt::format("step {}, rank {}: {}", written.step(), written.shard().rank(), written.error()));
  }
  failed_.Add(written.generation(), written.step(), written.error());
}

// What coordinators before this one have told of. Before the agent's own shards: those of a failed save must not wait.
void Coordinator::TakeFailures(const v1::Register& registration) {
  const uint64_t generation = registration.failed_generation();
  for (const v1::FailedSave& save : registration.failed_saves()) {
    const auto pending = pending_.find(save.step());
    const bool awaited = pending != pending_.end() && pending->second.generation == generation;
    if (awaited && pending->second.committing) continue;
    if (committed_.Has(save.step()) || !failed_.Add(generation, save.step(), save.error()) || !awaited)
      continue;
    pending_.erase(pending);
    TellCommitted(generation, save.step(), save.error());
  }
}

void Coordinator::MaybeCommit(uint64_t step) {
  Pending& pending = pending_[step];
  // While recovering it is not known yet which nodes make up the generation: agents say again what they have saved
  // with their first words. While the term is being raised neither fence is certain to be good.
  if (gang_->state() == gang::State::kRecovering || raising_) return;
  if (gang_->WorldSize() == 0 || pending.committing) return;
  pending.shards.erase(pending.shards.lower_bound(gang_->WorldSize()), pending.shards.end());
  if (pending.shards.size() < gang_->WorldSize()) return;
  CrashPoint("coordinator.shards_complete");
  Commit(step);
}

// What has been written meanwhile, now that it is known whose shards make a checkpoint, and under which fence.
void Coordinator::CommitWaiting() {
  std::erase_if(pending_, [&](const auto& item) { return item.second.generation != gang_->generation(); });
  std::vector<uint64_t> steps;
  for (const auto& [step, pending] : pending_) steps.push_back(step);
  for (const uint64_t step : steps) MaybeCommit(step);
}

void Coordinator::Commit(uint64_t step) {
  Pending& pending = pending_[step];
  pending.committing = true;
  auto manifest = std::make_shared<Manifest>();
  manifest->key = job_.Key();
  manifest->step = step;
  manifest->world_size = gang_->WorldSize();
  manifest->created_ns = RealtimeNs();
  for (auto& [rank, shard] : pending.shards) manifest->shards.push_back(std::move(shard));
  pending.shards.clear();
  pending.manifest = std::move(manifest);
  TryCommit(step);
}

void Coordinator::TryCommit(uint64_t step) {
  Pending& pending = pending_[step];
  ++pending.attempts;
  order_->Begin();
  committer_->Do([weak = weak_from_this(), mine = RecordIsMine(), catalog = catalog_,
                  manifest = pending.manifest, fence = fence_, order = order_,
                  retention = RetentionOf(config_).KeepingAlso(latest_).KeepingAlso(restore_),
                  in_doubt = in_doubt_, &removals = removals_, &loop = loop_] {
    if (!order->AwaitRecord(fence.generation, mine)) return order->End();
    Manifest fenced = *manifest;
    fenced.fence = fence;
    std::vector<CheckpointInfo> gone;
    const auto committed = catalog->Commit(fenced, retention, &gone);
    order->End();
    const Status status = committed ? Status() : Status(committed.error());
    *in_doubt = !status && status.error().code == Errc::kUnavailable;
    loop.Post([weak, status, fenced = std::make_shared<const Manifest>(std::move(fenced))] {
      CrashPoint("coordinator.commit_done");
      if (const auto self = weak.lock()) self->CommitDone(*fenced, status);
    });
    removals.Add(std::move(gone));
  });
}

// A store that is full or away may take it later. Of those that wait only the newest are kept, as in the members' memory.
bool Coordinator::CommitLater(uint64_t generation, uint64_t step, const Error& error) {
  const auto found = pending_.find(step);
  if (!MayPass(error) || deposed_ || generation != gang_->generation() || found == pending_.end() ||
      found->second.generation != generation || found->second.manifest == nullptr) {
    return false;
  }
  CheckpointDelayed(step, error.message);
  const auto newer = std::count_if(found, pending_.end(), [&](const auto& item) {
    return item.first > step && item.second.generation == generation && item.second.manifest != nullptr;
  });
  if (newer >= kMostWaiting || committed_.Highest().value_or(0) > step) {
    pending_.erase(found);
    const std::string why = "it was given up for newer ones: " + error.message;
    failed_.Add(generation, step, why);
    TellCommitted(generation, step, why);
    return true;
  }
  TryCommitSoon(generation, step);
  return true;
}

void Coordinator::TryCommitSoon(uint64_t generation, uint64_t step) {
  const auto found = pending_.find(step);
  if (found == pending_.end()) return;
  const auto pause = kCommitPause * (1 << std::min(found->second.attempts - 1, kMostDoublings));
  loop_.After(pause, [weak = weak_from_this(), generation, step] {
    const auto self = weak.lock();
    if (!self || self->deposed_ || generation != self->gang_->generation()) return;
    const auto waiting = self->pending_.find(step);
    if (waiting == self->pending_.end() || waiting->second.generation != generation) return;
    // Which fence is good is not certain now.
    if (self->gang_->state() == gang::State::kRecovering || self->raising_) {
      self->TryCommitSoon(generation, step);
    } else {
      self->TryCommit(step);
    }
  });
}

// Whether all members' shards of a step are durable, and the store is asked for the commit.
bool Coordinator::Committing() const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& item) {
    return item.second.generation == gang_->generation() && item.second.manifest != nullptr;
  });
}

void Coordinator::TellCommitted(uint64_t generation, uint64_t step, const std::string& error) {
  auto message = NewMessage();
  message.mutable_committed()->set_generation(generation);
  message.mutable_committed()->set_step(step);
  message.mutable_committed()->set_error(error);
  if (const auto written = written_.find(step); error.empty() && written != written_.end())
    message.mutable_committed()->mutable_written()->Assign(written->second.begin(), written->second.end());
  Broadcast(message);
}

void Coordinator::ShardRestored(const v1::ShardRestored& restored) {
  if (restored.generation() != gang_->generation()) return;
  if (restored_.generation != restored.generation())
    restored_ = Restored{.generation = restored.generation()};
  if (!restored_.ranks.insert(restored.rank()).second) return;
  restored_.bytes += restored.bytes();
  restored_.longest_ns = std::max(restored_.longest_ns, restored.elapsed_ns());
  const bool partner = !restored.from_memory() && restored.from_partner() == restored.bytes();
  (restored.from_memory() ? restored_.from_memory
   : partner              ? restored_.from_partners
                          : restored_.from_store) += 1;
  if (restored.from_memory()) restored_.memory_bytes += restored.bytes();
  restored_.partner_bytes += std::min(restored.from_partner(), restored.bytes());
  if (restored_.ranks.size() != gang_->WorldSize()) return;
  AddHistory(
      "restored",
      fmt::format("generation {} has its state: {} shards from memory, {} from partners, {} from the "
                  "store; {} bytes ({}, {} and {}), the slowest {:.1f} ms",
                  restored_.generation, restored_.from_memory, restored_.from_partners, restored_.from_store,
                  restored_.bytes, restored_.memory_bytes, restored_.partner_bytes,
                  restored_.bytes - restored_.memory_bytes - restored_.partner_bytes,
                  static_cast<double>(restored_.longest_ns) / 1e6));
}

// Removes what saves have left that were torn in older generations, now and once more. All objects are listed for it, so not too
// often.
void Coordinator::CollectOrphans() {
  if (collect_timer_ != 0 || over_called_) return;
  const int64_t now = BoottimeNs() / 1'000'000;
  if (now < collect_again_ms_) {
    collect_timer_ = loop_.After(std::chrono::milliseconds(collect_again_ms_ - now), [this] {
      collect_timer_ = 0;
      CollectOrphans();
    });
    return;
  }
  collect_again_ms_ = now + config_.collect_pause_ms;
  // On a thread of its own: commits do not wait for it.
  if (!collector_) collector_ = std::make_unique<Worker>();
  collector_->Do(Collecting(Catalog::Writers::kSome));
  // What was under way to the store when its writer was stopped may land as long as an operation may take.
  loop_.Cancel(late_timer_);
  late_timer_ = loop_.After(std::chrono::milliseconds(config_.store_timeout_ms), [this] {
    late_timer_ = 0;
    if (!over_called_) collector_->Do(Collecting(Catalog::Writers::kSome));
  });
}

std::function<void()> Coordinator::Collecting(Catalog::Writers writers) {
  Fence fence = fence_;
  fence.generation = durable_generation_;
  return [catalog = catalog_, fence, writers, in_doubt = in_doubt_, id = job_.Id()] {
    if (writers == Catalog::Writers::kNone && *in_doubt) {
      return spdlog::warn(
          "gang {}: what unfinished checkpoints have left is not removed: the store may still carry out a "
          "commit",
          id);
    }
    const auto removed = catalog->CollectOrphans(fence, writers);
    if (removed && *removed > 0)
      spdlog::info("gang {}: removed {} objects of unfinished checkpoints", id, *removed);
    // Another generation has begun meanwhile: it collects.
    if (removed || removed.error().code == Errc::kConflict) return;
    spdlog::warn("gang {}: what unfinished checkpoints have left is not removed yet: {}", id,
                 removed.error().message);
  };
}

void Coordinator::CommitDone(const Manifest& manifest, const Status& status) {
  const uint64_t generation = manifest.fence.generation;
  const uint64_t step = manifest.step;
  if (!status && status.error().code == Errc::kConflict && generation == gang_->generation())
    return CommitRefused(manifest.fence, step, status.error());
  if (!status && CommitLater(generation, step, status.error())) return;
  Pending done;
  if (generation == gang_->generation()) {
    if (auto pending = pending_.extract(step)) done = std::move(pending.mapped());
  }
  if (status) {
    if (delay_told_ && *delay_told_ <= step) delay_told_.reset();
    if (generation == gang_->generation()) {
      committed_.Add(step);
      RememberWritten(manifest);
    }
    if (!latest_ || *latest_ < step) latest_ = step;
    newest_ = {step, manifest.TotalBytes(), static_cast<double>(RealtimeNs()) / 1e9,
               static_cast<double>(done.held_ns) / 1e9, static_cast<double>(done.written_ns) / 1e9};
    saved_in_[step] = generation;
    // The last ones are enough: what is not known here is read from the store.
    while (saved_in_.size() > static_cast<size_t>(config_.keep_checkpoints) + 1)
      saved_in_.erase(saved_in_.begin());
    AddHistory("checkpoint", fmt::format("step {} is committed, {} bytes", step, manifest.TotalBytes()));
    StorageCommitted(manifest.TotalBytes());
    Feed(gang::CheckpointCommitted{step});
  } else {
    spdlog::warn("gang {}: checkpoint of step {}: {}", job_.Id(), step, status.error().message);
    AddHistory("checkpoint_failed", fmt::format("step {}: {}", step, status.error().message));
    failed_.Add(generation, step, status.error().message);
  }
  TellCommitted(generation, step, status ? "" : status.error().message);
  if (status && generation == gang_->generation()) GiveUpOvertaken(step, done.older_to_come);
}

void Coordinator::RememberWritten(const Manifest& manifest) {
  std::vector<std::string>& written = written_[manifest.step];
  written.clear();
  for (const Shard& shard : manifest.shards) {
    if (HasWrite(shard.prefix)) written.push_back(shard.prefix);
  }
  if (written.empty()) written_.erase(manifest.step);
  if (written_.size() > kMostWritten) written_.erase(written_.begin());
}

// The head has another fence. What becomes of the save then is not for this coordinator to say, unless it has moved the fence
// itself meanwhile.
void Coordinator::CommitRefused(const Fence& fence, uint64_t step, const Error& error) {
  if (deposed_) return;
  if (fence == fence_ && !raising_) return Deposed(error.message);
  TryCommitSoon(fence.generation, step);
}

// Nothing comes of a save that a member has skipped, though the others wait for it. Who makes a newer one, and is not writing
// an older one still, is not to make that any more.
void Coordinator::GiveUpOvertaken(uint64_t by, const std::set<uint32_t>& older_to_come) {
  const auto to_come = [&](const Pending& pending) {
    return pending.shards.size() >= gang_->WorldSize() ||
           std::any_of(older_to_come.begin(), older_to_come.end(),
                       [&](uint32_t rank) { return !pending.shards.contains(rank); });
  };
  for (auto at = pending_.begin(); at != pending_.end() && at->first < by;) {
    const auto now = at++;
    Pending& pending = now->second;
    if (pending.generation != gang_->generation() || pending.committing || to_come(pending)) continue;
    if (++pending.overtaken < kOvertaken) continue;
    const uint64_t step = now->first;
    pending_.erase(now);
    const std::string why = "not all members have saved it, and two newer checkpoints are committed";
    failed_.Add(gang_->generation(), step, why);
    TellCommitted(gang_->generation(), step, why);
  }
}

}  // namespace muster
