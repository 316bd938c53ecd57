// Collects the shards of a step and commits it; removes what old checkpoints and failed saves leave.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/owned_calls.h"
#include "base/worker.h"
#include "ceph/catalog/catalog.h"
#include "ceph/catalog/fence.h"
#include "ceph/catalog/manifest.h"
#include "ceph/store/store.h"
#include "daemon/config/config.h"
#include "daemon/coordinator/commit_order.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/orphans.h"
#include "daemon/coordinator/pending_saves.h"
#include "daemon/coordinator/removals.h"
#include "daemon/coordinator/storage_limit.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/metrics/metrics_text.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

// On the loop's thread only; a thread of its own commits. The destructor waits for what is under way.
class CheckpointSide final : public CoordinatorCore::SaveShell {
 public:
  struct Hooks {
    // Tells all nodes.
    std::function<void(v1::CoordinatorMessage message)> tell;
    std::function<void(const std::string& kind, const std::string& text)> note;
  };
  CheckpointSide(Loop& loop, const Config& config, const GangJob& job, const std::shared_ptr<Store>& store,
                 std::shared_ptr<Catalog> catalog, CoordinatorCore& core, Hooks hooks);

  // The coordinator has taken the record: takes over what the store has of the gang, which began at `created_ns`.
  void Take(const GangHead& head, int64_t created_ns);
  // A new generation begins, and has committed nothing yet.
  void BeginGeneration() { written_.clear(); }
  // Has the store asked how much room the user has, where that is not known.
  void LookAtRoom() { storage_.Look(); }
  // The nodes' messages.
  void Take(const v1::ShardWritten& written);
  void Take(const v1::ShardRestored& restored);
  // The failures that coordinators before this one have told a node of.
  void TakeFailures(const v1::Register& registration);
  // From now on nothing is taken. What this gives is to be called once: it calls `then` when all that was ordered is done.
  std::function<void()> AtTheEnd(std::function<void()> then);

  // The newest that the gang has committed.
  [[nodiscard]] const std::optional<GangMetrics::Checkpoint>& newest() const { return newest_; }
  // The generation that has saved the checkpoint of that step.
  [[nodiscard]] std::optional<uint64_t> SavedIn(uint64_t step) const;
  // Of the thread that commits and the thread that writes records.
  [[nodiscard]] const std::shared_ptr<CommitOrder>& order() const { return order_; }

  void Commit(const PendingSaves::Commit& action, const Fence& fence,
              const std::set<uint64_t>& kept) override;
  void Do(const PendingSaves::Tell& action) override;
  void Do(const PendingSaves::Wait& action) override;
  void Do(const PendingSaves::Note& action) override;
  void Do(const PendingSaves::StoreRefuses& action) override;
  void Committed(const Manifest& manifest, const PendingSaves::Over& over) override;
  void Collect() override { orphans_.Collect(); }

 private:
  // Which members have their shards of the checkpoint that a generation starts from, and where from.
  struct Restored {
    uint64_t generation = 0;
    std::set<uint32_t> ranks;
    uint32_t from_memory = 0;  // shards
    uint32_t from_partners = 0;
    uint32_t from_store = 0;  // some of it
    uint64_t bytes = 0;
    uint64_t memory_bytes = 0;
    uint64_t partner_bytes = 0;
    int64_t longest_ns = 0;
  };
  void RememberWritten(const Manifest& manifest);
  void Tell(const StorageLimit::Room& room);

  Loop& loop_;
  const Config& config_;
  const GangJob& job_;
  const std::shared_ptr<Catalog> catalog_;
  CoordinatorCore& core_;
  const Hooks hooks_;
  std::optional<GangMetrics::Checkpoint> newest_;
  std::map<uint64_t, uint64_t> saved_in_;  // steps of checkpoints, and the generations that saved them
  Restored restored_;
  // Of the newest ones that were committed here: the prefixes of shards that have a WRITE.
  std::map<uint64_t, std::vector<std::string>> written_;
  bool over_ = false;
  OwnedCalls calls_;
  const std::shared_ptr<CommitOrder> order_ = std::make_shared<CommitOrder>();
  // AtTheEnd goes through these from the last to the first, so they are destroyed in that order.
  Orphans orphans_;
  StorageLimit storage_;
  Removals removals_;
  Worker committer_;
};

}  // namespace muster
