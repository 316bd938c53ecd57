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

constexpr size_t kMostWritten = 4;  // commits

}  // namespace

void Coordinator::ShardWritten(const v1::ShardWritten& written) {
  if (over_called_) return;  // what is not committed now is removed
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
void Coordinator::TakeFailures(const v1::Register& registration) {
  for (const v1::FailedSave& save : registration.failed_saves())
    core_.FailedBefore(registration.failed_generation(), save.step(), save.error());
}

void Coordinator::Commit(const PendingSaves::Commit& action, const Fence& fence,
                         const std::set<uint64_t>& kept) {
  if (action.attempt == 1) {
    CrashPoint("coordinator.shards_complete");
    action.manifest->key = job_.Key();
    action.manifest->created_ns = RealtimeNs();
  }
  Retention retention = RetentionOf(config_);
  retention.also.insert(kept.begin(), kept.end());
  order_->Begin();
  committer_->Do([weak = weak_from_this(), mine = core_.fence().Mine(), catalog = catalog_,
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
    loop.Post([weak, status, fenced = std::make_shared<const Manifest>(std::move(fenced))] {
      CrashPoint("coordinator.commit_done");
      const auto self = weak.lock();
      if (!self) return;
      if (self->core_.CommitOver(*fenced, status))
        spdlog::warn("gang {}: checkpoint of step {}: {}", self->job_.Id(), fenced->step,
                     status.error().message);
    });
    removals.Add(std::move(gone));
  });
}

void Coordinator::Do(const PendingSaves::Tell& action) {
  auto message = NewMessage();
  message.mutable_committed()->set_generation(action.generation);
  message.mutable_committed()->set_step(action.step);
  message.mutable_committed()->set_error(action.error);
  if (const auto written = written_.find(action.step); action.error.empty() && written != written_.end())
    message.mutable_committed()->mutable_written()->Assign(written->second.begin(), written->second.end());
  Broadcast(message);
}

void Coordinator::Do(const PendingSaves::Wait& action) {
  loop_.After(action.time, [weak = weak_from_this(), generation = action.generation, step = action.step] {
    if (const auto self = weak.lock()) self->core_.SaveAgain(generation, step);
  });
}

void Coordinator::Do(const PendingSaves::Note& action) {
  AddHistory(action.kind, action.text);
}

void Coordinator::Do(const PendingSaves::StoreRefuses& /*action*/) {
  storage_.Refused();
}

void Coordinator::ShardRestored(const v1::ShardRestored& restored) {
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
  AddHistory(
      "restored",
      fmt::format("generation {} has its state: {} shards from memory, {} from partners, {} from the "
                  "store; {} bytes ({}, {} and {}), the slowest {:.1f} ms",
                  restored_.generation, restored_.from_memory, restored_.from_partners, restored_.from_store,
                  restored_.bytes, restored_.memory_bytes, restored_.partner_bytes,
                  restored_.bytes - restored_.memory_bytes - restored_.partner_bytes,
                  static_cast<double>(restored_.longest_ns) / 1e6));
}

void Coordinator::Committed(const Manifest& manifest, const PendingSaves::Over& over) {
  const uint64_t step = manifest.step;
  if (manifest.fence.generation == core_.gang().generation()) RememberWritten(manifest);
  newest_ = {step, manifest.TotalBytes(), static_cast<double>(RealtimeNs()) / 1e9,
             static_cast<double>(over.held_ns) / 1e9, static_cast<double>(over.written_ns) / 1e9};
  saved_in_[step] = manifest.fence.generation;
  // The last ones are enough: what is not known here is read from the store.
  while (saved_in_.size() > static_cast<size_t>(config_.keep_checkpoints) + 1)
    saved_in_.erase(saved_in_.begin());
  AddHistory("checkpoint", fmt::format("step {} is committed, {} bytes", step, manifest.TotalBytes()));
  storage_.Committed(manifest.TotalBytes());
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

}  // namespace muster
