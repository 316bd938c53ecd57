// How a coordinator comes to its gang's record: carries out what TakeOver decides, try by try, asks Slurm whether a gang that has the
// name lives, and keeps what the nodes say meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/owned_calls.h"
#include "base/result.h"
#include "base/timer.h"
#include "base/worker.h"
#include "ceph/catalog/catalog.h"
#include "daemon/beat/beat_clock.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/history.h"
#include "daemon/coordinator/node_links.h"
#include "daemon/coordinator/record.h"
#include "daemon/coordinator/take_over.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/link/link.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/slurm/slurm.h"
#include "daemon/slurm/topology.h"

namespace muster {

// On the loop's thread only.
class RecordClaim {
 public:
  struct Settings {
    std::string self;   // this host
    std::string store;  // for people
    int64_t silence_ms = 0;
    // Read anew before each try, on the writer's thread, for the settings of the gang; may be null.
    std::shared_ptr<TopologyFile> topology;
  };
  // The record is this coordinator's.
  struct Taken {
    GangHead head;
    std::optional<GangRecord> record;  // that was there
    TakeOver::Swap::After after = TakeOver::Swap::After::kNothing;
    lease::Nanos asked_at = 0;  // before the store was asked
  };
  // What a node has said before the record was this coordinator's.
  struct Early {
    uint32_t node = 0;
    std::shared_ptr<Link> link;
    v1::AgentMessage message;
  };
  struct Hooks {
    // The record of this gang as it is now.
    std::function<GangRecord()> record;
    std::function<void(const Taken& taken)> taken;
    // A try has failed.
    std::function<void()> not_taken;
    // This host coordinates in this term; "": nobody knows which host.
    std::function<void(const std::string& successor, uint64_t term)> step_down;
    // The gang cannot have its record. `job_is_over`: a later run of the job has the record.
    std::function<void(const std::string& why, bool job_is_over)> refuse;
  };
  // `writer`: the thread that writes records. `slurm`: null where there is no Slurm. `core`: has not begun.
  RecordClaim(Loop& loop, std::shared_ptr<const BeatClock> clock, Worker& writer,
              std::shared_ptr<Catalog> catalog, Slurm* slurm, const GangJob& job, const CoordinatorCore& core,
              const NodeLinks& nodes, History& history, Settings settings, Hooks hooks);

  // Tries until a hook says how that has ended. It comes first.
  void Begin(const TakeOver::Origin& origin);
  // Until the core begins: a node has registered, or says something else.
  void Registered(uint32_t node, std::shared_ptr<Link> link, const v1::Register& registration);
  void Hear(uint32_t node, const v1::AgentMessage& message);
  // All that was said, in order. It is forgotten here.
  std::vector<Early> TakeEarly() { return std::exchange(early_, {}); }
  // Another gang has the name, as far as is known.
  [[nodiscard]] bool waits() const { return !holder_.empty(); }

 private:
  void Try();
  void TryLater(std::chrono::milliseconds pause);
  void NotTaken(const Error& why);
  void AskHolder(const GangRecord& holder);
  void HolderKnown(const GangRecord& holder, const Result<SlurmJob>& job);
  bool EndedBeforeItBegan();
  [[nodiscard]] v1::CoordinatorMessage Waiting() const;

  Loop& loop_;
  const std::shared_ptr<const BeatClock> clock_;
  Worker& writer_;
  const std::shared_ptr<Catalog> catalog_;
  Slurm* const slurm_;
  const GangJob& job_;
  const CoordinatorCore& core_;
  const NodeLinks& nodes_;
  History& history_;
  const Settings settings_;
  const Hooks hooks_;
  std::optional<TakeOver> rules_;  // from Begin
  std::vector<Early> early_;
  std::string holder_;   // of the name, in a sentence; "": no other gang has it
  std::string waiting_;  // what the job's user was told of that; "": nothing
  Timer timer_;          // of the next try
  OwnedCalls calls_;
};

}  // namespace muster
