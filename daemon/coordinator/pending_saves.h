// Saves of the generation that runs: members' shards of a step come in, and the step is committed, tried again, given up, or has
// failed. Every save ends for every member. Pure: no I/O, clock or thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "ceph/catalog/manifest.h"
#include "daemon/gang_job/failed_saves.h"
#include "daemon/gang_job/recent_steps.h"

namespace muster {

class PendingSaves {
 public:
  // How the gang is when something happens.
  struct Now {
    uint64_t generation = 0;
    uint32_t members = 0;
    uint32_t world_size = 0;  // members that save
    // It is known which nodes make the generation up, and which fence is good.
    bool settled = false;
  };
  struct Written {
    uint64_t generation = 0;
    uint64_t step = 0;
    bool older_to_come = false;  // the member still writes a shard of a lower step
    int64_t held_ns = 0;         // how long it was held up
    int64_t written_ns = 0;      // how long the shard took
  };
  struct Failure {
    uint64_t generation = 0;
    uint64_t step = 0;
    uint32_t rank = 0;
    bool lost = false;      // with the node's memory
    bool given_up = false;  // for newer saves
    std::string error;
  };
  enum class Outcome {
    kDone,
    kRefused,  // under a fence that this coordinator has moved itself, or is moving
    kMayPass,  // the store is away, or full
    kFailed,
  };

  // The store is to be asked for the commit. Key, fence and time of the manifest are the caller's.
  struct Commit {
    std::shared_ptr<Manifest> manifest;
    int attempt = 1;  // an earlier one may have been carried out
  };
  // All members are to be told that the step is committed, or with an error that nothing comes of it.
  struct Tell {
    uint64_t generation = 0;
    uint64_t step = 0;
    std::string error;
  };
  // After this time Again is to be called.
  struct Wait {
    uint64_t generation = 0;
    uint64_t step = 0;
    std::chrono::milliseconds time;
  };
  // A line of the gang's history.
  struct Note {
    std::string kind;
    std::string text;
  };
  // The store has not taken a shard: it may be full.
  struct StoreRefuses {};
  using Action = std::variant<Commit, Tell, Wait, Note, StoreRefuses>;
  using Actions = std::vector<Action>;
  // A commit's end.
  struct Over {
    bool again = false;      // it is none: the commit will be tried again, or the save was given up
    int64_t held_ns = 0;     // of the member that was held up longest
    int64_t written_ns = 0;  // of the shard that took longest
    Actions actions;
  };

  // A member's shard is durable.
  Actions OnWritten(const Now& now, const Written& written, Shard shard);
  // A member's shard will not be.
  Actions OnFailed(const Now& now, const Failure& failure);
  // The store does not take a shard now.
  Actions OnDelayed(const Now& now, uint64_t generation, uint64_t step, const std::string& why);
  // A coordinator before this one has told of a failure.
  Actions OnFailedBefore(uint64_t generation, uint64_t step, const std::string& error);
  // The gang may have settled.
  Actions OnSettled(const Now& now);
  // A Wait is over.
  Actions Again(const Now& now, uint64_t generation, uint64_t step);
  // What became of a commit; `error` says why there is none.
  Over OnCommitOver(const Now& now, uint64_t generation, uint64_t step, Outcome outcome,
                    const std::string& error);

  // A generation begins that nobody has started before.
  void BeginGeneration();
  // Nothing is committed any more.
  void Clear() { pending_.clear(); }
  // A checkpoint that a coordinator before this one has committed. The nodes may run a newer generation than the record says.
  void CommittedBefore(uint64_t generation, uint64_t step) { AddCommitted(generation, step); }
  [[nodiscard]] bool IsCommitted(uint64_t generation, uint64_t step) const {
    return Committed(generation).Has(step);
  }
  // All members' shards of a step are durable, and the store is asked for the commit.
  [[nodiscard]] bool Committing(uint64_t generation) const;

 private:
  struct Pending {
    uint64_t generation = 0;
    std::map<uint32_t, Shard> shards;  // by rank
    int64_t held_ns = 0;
    int64_t written_ns = 0;
    std::shared_ptr<Manifest> manifest;  // while it is committed
    std::set<uint32_t> older_to_come;    // ranks that are still writing a shard of a lower step
    int overtaken = 0;  // commits of higher steps by members that are not to make this one any more
    int attempts = 0;   // to commit it
  };
  std::optional<Tell> Known(uint64_t generation, uint64_t step) const;
  void AddCommitted(uint64_t generation, uint64_t step);
  // The steps that this generation has committed.
  [[nodiscard]] const RecentSteps& Committed(uint64_t generation) const;
  void MaybeCommit(const Now& now, uint64_t step, Actions* out);
  bool CommitLater(const Now& now, uint64_t generation, uint64_t step, const std::string& error,
                   Actions* out);
  void WaitForAgain(uint64_t generation, uint64_t step, Actions* out) const;
  void Delayed(uint64_t step, const std::string& why, Actions* out);
  void GiveUp(uint64_t generation, uint64_t step, const std::string& why, Actions* out);
  void GiveUpOvertaken(const Now& now, uint64_t by, const std::set<uint32_t>& older_to_come, Actions* out);

  std::map<uint64_t, Pending> pending_;  // by step
  RecentSteps committed_;                // by the members of `committed_in_`
  uint64_t committed_in_ = 0;            // generation
  FailedSaves failed_;
  std::optional<uint64_t> delay_told_;  // of this step; until it, or a newer one, is committed
};

}  // namespace muster
