#include "daemon/coordinator/checkpoint_side.h"

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
#include "daemon/proto/shard_message.h"

namespace muster {
namespace {

constexpr size_t kMostWritten = 4;  // commits

}  // namespace

CheckpointSide::CheckpointSide(Loop& loop, const Config& config, const GangJob& job,
                               const std::shared_ptr<Store>& store, std::shared_ptr<Catalog> catalog,
                               CoordinatorCore& core, Hooks hooks)
    : loop_(loop),
      config_(config),
      job_(job),
      catalog_(std::move(catalog)),
      core_(core),
      hooks_(std::move(hooks)),
      calls_(loop),
      orphans_(loop, catalog_,
               [this] {
                 return Fence{core_.fence().term(), core_.fence().durable()};
               },
               {.gang = job_.Id(),
                .pause = std::chrono::milliseconds(config_.collect_pause_ms),
                .store_timeout = std::chrono::milliseconds(config_.store_timeout_ms)}),
      storage_(loop, orphans_.worker(), store,
               {.gang = job_.Id(),
                .uid = job_.uid,
                .space = job_.Space(),
                .limit = static_cast<uint64_t>(config_.user_storage_limit)},
               [this](const StorageLimit::Room& room) { Tell(room); }),
      removals_(catalog_, job_.Id(), orphans_.CollectSoon()) {}

void CheckpointSide::Tell(const StorageLimit::Room& room) {
  if (core_.lost()) return;
  v1::CoordinatorMessage message;
  message.mutable_storage()->set_limit(room.limit);
  message.mutable_storage()->set_use(room.use);
  message.mutable_storage()->set_need(room.need);
  hooks_.tell(std::move(message));
}

void CheckpointSide::Take(const GangHead& head, int64_t created_ns) {
  for (const CheckpointInfo& checkpoint : head.checkpoints) {
    saved_in_[checkpoint.step] = checkpoint.fence.generation;
    // The age of a checkpoint that an earlier gang of the key has left is not what a fault would cost this gang.
    if (checkpoint.step == head.latest && checkpoint.created_ns >= created_ns)
      newest_ = {checkpoint.step, checkpoint.bytes, static_cast<double>(checkpoint.created_ns) / 1e9, {}, {}};
  }
  order_->Recorded(head.fence.generation);
}

std::optional<uint64_t> CheckpointSide::SavedIn(uint64_t step) const {
  const auto saved = saved_in_.find(step);
  return saved == saved_in_.end() ? std::nullopt : std::optional(saved->second);
}

std::function<void()> CheckpointSide::AtTheEnd(std::function<void()> then) {
  over_ = true;
  storage_.End();
  // What the last generation has left is removed now, too: no other generation will remove it, unless the job is requeued and goes on.
  auto next = orphans_.AtTheEnd(core_.ending().finished() && !core_.lost(), std::move(then));
  return [this, next = std::move(next)] { committer_.Do([this, next] { removals_.AtTheEnd(next); }); };
}

void CheckpointSide::Take(const v1::ShardWritten& written) {
  if (over_) return;  // what is not committed now is removed
  if (!written.error().empty()) {
    return core_.ShardFailed({.generation = written.generation(),
                              .step = written.step(),
                              .rank = written.shard().rank(),
                              .lost = written.lost(),
                              .given_up = written.given_up(),
                              .error = written.error()});
  }
  core_.ShardWritten({.generation = written.generation(),
                      .step = written.step(),
                      .older_to_come = written.older_to_come(),
                      .held_ns = written.held_ns(),
                      .written_ns = written.written_ns()},
                     TakeShard(written.shard()));
}

// What coordinators before this one have told of. Before the agent's own shards: those of a failed save must not wait.
void CheckpointSide::TakeFailures(const v1::Register& registration) {
  for (const v1::FailedSave& save : registration.failed_saves())
    core_.FailedBefore(registration.failed_generation(), save.step(), save.error());
}

void CheckpointSide::Commit(const PendingSaves::Commit& action, const Fence& fence,
                            const std::set<uint64_t>& kept) {
  if (action.attempt == 1) {
    CrashPoint("coordinator.shards_complete");
    action.manifest->key = job_.Key();
    action.manifest->created_ns = RealtimeNs();
  }
  Retention retention = RetentionOf(config_);
  retention.also.insert(kept.begin(), kept.end());
  order_->Begin();
  const auto done = calls_.Here([this](const Manifest& fenced, const Status& status) {
    if (core_.CommitOver(fenced, status))
      spdlog::warn("gang {}: checkpoint of step {}: {}", job_.Id(), fenced.step, status.error().message);
  });
  committer_.Do([done, mine = core_.fence().Mine(), catalog = catalog_,
                 manifest = std::shared_ptr<const Manifest>(action.manifest), fence, order = order_,
                 retention = std::move(retention), over = orphans_.CommitOver(), &removals = removals_,
                 &loop = loop_] {
    if (!order->AwaitRecord(fence.generation, mine)) return order->End();
    Manifest fenced = *manifest;
    fenced.fence = fence;
    std::vector<CheckpointInfo> gone;
    const auto committed = catalog->Commit(fenced, retention, &gone);
    order->End();
    const Status status = committed ? Status() : Status(committed.error());
    over(status);
    loop.Post([done, status, fenced = std::make_shared<const Manifest>(std::move(fenced))] {
      CrashPoint("coordinator.commit_done");
      done(*fenced, status);
    });
    removals.Add(std::move(gone));
  });
}

void CheckpointSide::Do(const PendingSaves::Tell& action) {
  v1::CoordinatorMessage message;
  message.mutable_committed()->set_generation(action.generation);
  message.mutable_committed()->set_step(action.step);
  message.mutable_committed()->set_error(action.error);
  if (const auto written = written_.find(action.step); action.error.empty() && written != written_.end())
    message.mutable_committed()->mutable_written()->Assign(written->second.begin(), written->second.end());
  hooks_.tell(std::move(message));
}

void CheckpointSide::Do(const PendingSaves::Wait& action) {
  loop_.After(action.time, calls_.Here([this, generation = action.generation, step = action.step] {
    core_.SaveAgain(generation, step);
  }));
}

void CheckpointSide::Do(const PendingSaves::Note& action) {
  hooks_.note(action.kind, action.text);
}

void CheckpointSide::Do(const PendingSaves::StoreRefuses& /*action*/) {
  storage_.Refused();
}

void CheckpointSide::Take(const v1::ShardRestored& restored) {
  if (restored.generation() != core_.gang().generation()) return;
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
  if (restored_.ranks.size() != core_.gang().WorldSize()) return;
  hooks_.note(
      "restored",
      fmt::format("generation {} has its state: {} shards from memory, {} from partners, {} from the "
                  "store; {} bytes ({}, {} and {}), the slowest {:.1f} ms",
                  restored_.generation, restored_.from_memory, restored_.from_partners, restored_.from_store,
                  restored_.bytes, restored_.memory_bytes, restored_.partner_bytes,
                  restored_.bytes - restored_.memory_bytes - restored_.partner_bytes,
                  static_cast<double>(restored_.longest_ns) / 1e6));
}

void CheckpointSide::Committed(const Manifest& manifest, const PendingSaves::Over& over) {
  const uint64_t step = manifest.step;
  if (manifest.fence.generation == core_.gang().generation()) RememberWritten(manifest);
  newest_ = {step, manifest.TotalBytes(), static_cast<double>(RealtimeNs()) / 1e9,
             static_cast<double>(over.held_ns) / 1e9, static_cast<double>(over.written_ns) / 1e9};
  saved_in_[step] = manifest.fence.generation;
  // The last ones are enough: what is not known here is read from the store.
  while (saved_in_.size() > static_cast<size_t>(config_.keep_checkpoints) + 1)
    saved_in_.erase(saved_in_.begin());
  hooks_.note("checkpoint", fmt::format("step {} is committed, {} bytes", step, manifest.TotalBytes()));
  storage_.Committed(manifest.TotalBytes());
}

void CheckpointSide::RememberWritten(const Manifest& manifest) {
  std::vector<std::string>& written = written_[manifest.step];
  written.clear();
  for (const Shard& shard : manifest.shards) {
    if (HasWrite(shard.prefix)) written.push_back(shard.prefix);
  }
  if (written.empty()) written_.erase(manifest.step);
  if (written_.size() > kMostWritten) written_.erase(written_.begin());
}

}  // namespace muster
