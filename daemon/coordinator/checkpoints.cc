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

PendingSaves::Now Coordinator::SavesNow() const {
  return {.generation = gang_->generation(),
          .members = static_cast<uint32_t>(gang_->members().size()),
          .world_size = gang_->WorldSize(),
          .settled = gang_->state() != gang::State::kRecovering && !fence_.raising() &&
                     fence_.fence().generation == gang_->generation()};
}

void Coordinator::ShardWritten(const v1::ShardWritten& written) {
  if (over_called_) return;  // what is not committed now is removed
  if (!written.error().empty()) {
    return Carry(saves_.OnFailed(SavesNow(), {.generation = written.generation(),
                                              .step = written.step(),
                                              .rank = written.shard().rank(),
                                              .lost = written.lost(),
                                              .given_up = written.given_up(),
                                              .error = written.error()}));
  }
  Carry(saves_.OnWritten(SavesNow(),
                         {.generation = written.generation(),
                          .step = written.step(),
                          .older_to_come = written.older_to_come(),
                          .held_ns = written.held_ns(),
                          .written_ns = written.written_ns()},
                         TakeShard(written.shard())));
}

void Coordinator::ShardDelayed(const v1::ShardDelayed& delayed) {
  Carry(saves_.OnDelayed(SavesNow(), delayed.generation(), delayed.step(), delayed.error()));
}

// What coordinators before this one have told of. Before the agent's own shards: those of a failed save must not wait.
void Coordinator::TakeFailures(const v1::Register& registration) {
  for (const v1::FailedSave& save : registration.failed_saves())
    Carry(saves_.OnFailedBefore(registration.failed_generation(), save.step(), save.error()));
}

// What has been written meanwhile, now that it is known whose shards make a checkpoint, and under which fence.
void Coordinator::CommitWaiting() {
  Carry(saves_.OnSettled(SavesNow()));
}

void Coordinator::Carry(const PendingSaves::Actions& actions) {
  for (const PendingSaves::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Coordinator::Do(const PendingSaves::Commit& action) {
  if (action.attempt == 1) {
    CrashPoint("coordinator.shards_complete");
    action.manifest->key = job_.Key();
    action.manifest->created_ns = RealtimeNs();
  }
  order_->Begin();
  committer_->Do([weak = weak_from_this(), mine = fence_.Mine(), catalog = catalog_,
                  manifest = std::shared_ptr<const Manifest>(action.manifest), fence = fence_.fence(),
                  order = order_,
                  retention = RetentionOf(config_).KeepingAlso(starts_.newest()).KeepingAlso(starts_.from()),
                  over = orphans_.CommitOver(), &removals = removals_, &loop = loop_] {
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
      if (const auto self = weak.lock()) self->CommitDone(*fenced, status);
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
    if (const auto self = weak.lock(); self && !self->fence_.lost())
      self->Carry(self->saves_.Again(self->SavesNow(), generation, step));
  });
}

void Coordinator::Do(const PendingSaves::Note& action) {
  AddHistory(action.kind, action.text);
}

void Coordinator::Do(const PendingSaves::StoreRefuses& /*action*/) {
  storage_.Refused();
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

void Coordinator::CommitDone(const Manifest& manifest, const Status& status) {
  using Outcome = PendingSaves::Outcome;
  const uint64_t generation = manifest.fence.generation;
  const uint64_t step = manifest.step;
  Outcome outcome = status ? Outcome::kDone : Outcome::kFailed;
  if (!status && status.error().code == Errc::kConflict && generation == gang_->generation()) {
    // The head has another fence. What becomes of the save then is not for this coordinator to say, unless it has moved the
    // fence itself meanwhile.
    if (fence_.lost()) return;
    if (!fence_.Moved(manifest.fence)) return Deposed(status.error().message);
    outcome = Outcome::kRefused;
  } else if (!status && MayPass(status.error()) && !fence_.lost()) {
    outcome = Outcome::kMayPass;
  }
  const PendingSaves::Over over =
      saves_.OnCommitOver(SavesNow(), generation, step, outcome, status ? "" : status.error().message);
  if (over.again) return Carry(over.actions);
  if (status) {
    if (generation == gang_->generation()) RememberWritten(manifest);
    starts_.Committed(step);
    newest_ = {step, manifest.TotalBytes(), static_cast<double>(RealtimeNs()) / 1e9,
               static_cast<double>(over.held_ns) / 1e9, static_cast<double>(over.written_ns) / 1e9};
    saved_in_[step] = generation;
    // The last ones are enough: what is not known here is read from the store.
    while (saved_in_.size() > static_cast<size_t>(config_.keep_checkpoints) + 1)
      saved_in_.erase(saved_in_.begin());
    AddHistory("checkpoint", fmt::format("step {} is committed, {} bytes", step, manifest.TotalBytes()));
    storage_.Committed(manifest.TotalBytes());
    Feed(gang::CheckpointCommitted{step});
  } else {
    spdlog::warn("gang {}: checkpoint of step {}: {}", job_.Id(), step, status.error().message);
  }
  Carry(over.actions);
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
