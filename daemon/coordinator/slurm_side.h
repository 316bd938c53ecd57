// What the gang has to do with Slurm beyond its step: the job's facts and its end, nodes down or drained, requeue.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/owned_calls.h"
#include "base/result.h"
#include "base/timer.h"
#include "ceph/catalog/fence.h"
#include "daemon/coordinator/core.h"
#include "daemon/gang/cause.h"
#include "daemon/gang/events.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/slurm/slurm.h"

namespace muster {

// On the loop's thread only.
class SlurmSide final : public CoordinatorCore::SlurmShell {
 public:
  struct Settings {
    bool leases = false;  // as the core's
    std::chrono::milliseconds lease;
    int64_t time_limit_margin_ms = 0;
  };
  // The fence of the record in the store, and how long ago the store was asked for it.
  using FenceRead = std::function<void(const Result<Fence>& fence, std::chrono::nanoseconds age)>;
  struct Hooks {
    // Asks the store.
    std::function<void(FenceRead then)> read_fence;
    std::function<void(const std::string& kind, const std::string& text)> note;
    // Tells all nodes that Slurm ends the job.
    std::function<void(const std::string& why)> tell_end;
  };
  // `slurm`: null where there is no Slurm; then Slurm is asked nothing, and told nothing.
  SlurmSide(Loop& loop, Slurm* slurm, const GangJob& job, CoordinatorCore& core, const Settings& settings,
            Hooks hooks);

  // The gang is there since `created_ns`.
  void Take(int64_t created_ns) { created_ns_ = created_ns; }
  // Asks for the job's facts, from now on again and again.
  void Begin();
  // A task has a signal from Slurm.
  void OnTerminating(const v1::Terminating& message);
  // The job's comment is to be `text`, if there is one: when the next generation runs, or its start has taken long. The comment on a lost
  // node is set at once, and takes its place.
  void CommentOnFault(const std::string& text);
  // The gang's state may be another one.
  void Fed();
  // The gang is over, and its nodes are told.
  void Finished();
  // What Slurm has said of the job's end.
  [[nodiscard]] gang::Announced announced() const { return announced_; }

  void Do(const gang::LoseNode& action) override;
  void Do(const gang::DrainInSlurm& action) override;
  Status OrderRequeue(const gang::RequeueJob& action) override;
  void Requeue() override;

 private:
  std::chrono::milliseconds TakeFacts(const SlurmJob& facts);
  void Answered(const v1::Terminating& message, const Result<SlurmJob>& answer);
  bool WarnedBefore(const SlurmJob& facts, uint32_t warn_seconds);
  bool MaybeWarned(const SlurmJob& facts, uint32_t warn_seconds);
  void RequeuedBySlurm();
  void SetDown(const gang::LoseNode& action, const Status& newest);
  void SetDownIfNewest(const gang::LoseNode& action, const std::shared_ptr<bool>& settled);
  void SetDownByQuorum(const gang::LoseNode& action, const std::shared_ptr<bool>& settled);
  void SetComment();
  void Comment(const std::string& text);
  [[nodiscard]] JobRun Run() const;

  Loop& loop_;
  Slurm* const slurm_;
  const GangJob& job_;
  CoordinatorCore& core_;
  const Settings settings_;
  const Hooks hooks_;
  int64_t created_ns_ = 0;
  std::vector<gang::LoseNode> down_later_;    // of which Slurm is told when the gang is over
  std::vector<uint32_t> down_;                // of which it was told
  gang::RequeueJob requeue_;                  // the newest that was ordered
  bool asking_why_ = false;                   // Slurm ends the job
  std::optional<v1::Terminating> ask_again_;  // the newest SIGTERM of those that were told of meanwhile
  // Seconds before the job's end at which it wants its --signal, as a member has said while Slurm has not answered yet; 0: none has.
  uint32_t warn_seconds_ = 0;
  gang::Announced announced_ = gang::Announced::kNothing;
  std::optional<SlurmJob> facts_;  // as Slurm last said
  std::string comment_;            // on a fault, that Slurm is to be told; "": none
  Timer comment_timer_;
  bool comment_refused_ = false;  // Slurm did not take the job's comment, and that was said
  Timer timer_;                   // of the next question
  OwnedCalls calls_;
};

}  // namespace muster
