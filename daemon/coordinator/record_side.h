// Writes the gang's record, reads it, and finds out whose it is when the store refuses a write.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/owned_calls.h"
#include "base/result.h"
#include "base/worker.h"
#include "ceph/catalog/catalog.h"
#include "daemon/beat/beat_clock.h"
#include "daemon/coordinator/commit_order.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang_job/gang_job.h"

namespace muster {

// On the loop's thread only; a thread of its own writes, in order. The destructor waits for all writes: until the store is back,
// unless the core has lost the record.
class RecordSide final : public CoordinatorCore::RecordShell {
 public:
  // `asked_at`: before the store was asked, by the clock of leases.
  using HeadRead = std::function<void(const Result<GangHead>& head, lease::Nanos asked_at)>;
  struct Hooks {
    // The record as it is to be written now.
    std::function<GangRecord()> record;
    // This host has the gang's record; "": nobody knows which host.
    std::function<void(const std::string& successor)> step_down;
    // Another gang has the record, so this gang must not run on. `job_is_over`: that gang is a later run's of the job.
    std::function<void(const std::string& why, bool job_is_over)> refuse;
  };
  // `reader`: a thread that waits for no write. `order`: of the thread that writes and the thread that commits.
  RecordSide(Loop& loop, std::shared_ptr<const BeatClock> clock, Worker* reader,
             std::shared_ptr<Catalog> catalog, std::shared_ptr<CommitOrder> order, const GangJob& job,
             CoordinatorCore& core, Hooks hooks);

  // Reads what the store has now. It takes no longer than the store's own time limit, whatever write is under way.
  void Read(HeadRead then);
  // The thread that writes.
  [[nodiscard]] Worker& writer() { return writer_; }

  void WriteRecord(const RecordFence::Advance& advance) override;
  void WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) override;
  void FindSuccessor(const std::string& why) override;
  void AskTerm() override;
  void MarkBad(const gang::RejectCheckpoint& bad, bool later) override;

 private:
  const std::shared_ptr<const BeatClock> clock_;
  Loop& loop_;
  Worker* const reader_;
  const std::shared_ptr<Catalog> catalog_;
  const std::shared_ptr<CommitOrder> order_;
  const GangJob& job_;
  CoordinatorCore& core_;
  const Hooks hooks_;
  bool asking_term_ = false;
  OwnedCalls calls_;
  Worker writer_;
};

// Checkpoints that are good.
std::vector<CoordinatorCore::Listed> GoodOf(const GangHead& head);

}  // namespace muster
