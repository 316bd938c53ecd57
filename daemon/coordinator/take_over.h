// How a coordinator comes to its gang's record: what is in the store is read, this decides, and a compare-and-swap puts a record
// there that names the coordinator. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "base/result.h"
#include "ceph/catalog/fence.h"
#include "daemon/coordinator/name_claim.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang_job/gang_job.h"

namespace muster {

class TakeOver {
 public:
  using Nanos = int64_t;
  // Who has promised the term must not begin another try of its compare-and-swap after so long: the others wait for the outcome.
  static constexpr Nanos kSwapFor = 5'000'000'000;

  // How this node comes to coordinate.
  struct Origin {
    bool fresh = false;       // no member has run yet, as far as the node that asked knows
    bool promised = false;    // this node's agent has found that the coordinator before is dead
    uint64_t after_term = 0;  // with `promised`: only if the record still has this term
    uint64_t known_term = 0;  // without: the newest term that those who ask have seen
  };
  struct Until {
    // By the clock of leases: a successor that has died unannounced would have been found silent by then.
    Nanos successor = 0;
    Nanos refusal = 0;  // of a gang that cannot get its record
  };
  // One try.
  struct Try {
    Nanos now = 0;            // by the clock of leases
    std::set<uint32_t> here;  // the nodes that have a link
  };
  // What the store has. Without a head: the lowest fence, no record.
  struct Found {
    Fence fence;
    const GangRecord* record = nullptr;  // null: the head is no gang's
  };

  // The record is to be swapped: from exactly this fence, so that what another has taken meanwhile stays taken.
  struct Swap {
    enum class After { kNothing, kGang, kEnd };  // whether the gang is new, goes on, or is over already
    Fence from;
    Fence to;
    // That names this coordinator, for those who read it before the first beat; the caller sets when it was made.
    GangRecord record;
    After after = After::kNothing;
  };
  // Another coordinates.
  struct Elsewhere {
    std::string coordinator;
    uint64_t term = 0;
  };
  // Another gang has the name as long as it lives: Slurm is to be asked about its job, and claim() is to hear the answer.
  struct Held {
    GangRecord record;
  };
  // An Error says why the record is not taken now.
  using Decision = std::variant<Swap, Elsewhere, Held, Error>;

  enum class Next { kAgain, kStepDown, kRefuse };

  TakeOver(const Origin& origin, GangJob job, std::string self, const Until& until);

  // A node that asks this one to coordinate has seen this term.
  void Asked(uint64_t term) { origin_.known_term = std::max(origin_.known_term, term); }
  // `mine`: the record of a gang that begins.
  [[nodiscard]] Decision Decide(const Found& found, const Try& now, const GangRecord& mine) const;
  // The store has not answered, or this has decided so, or the swap has failed.
  [[nodiscard]] Next NotTaken(const Error& why, Nanos now);
  // After a pause. False: those who asked have found the one that coordinates.
  [[nodiscard]] static bool StillAsked(const std::set<uint32_t>& here) { return !here.empty(); }
  // kDenied: the record is of a later run of the job.
  [[nodiscard]] static Status MayRunOn(const GangRecord& record, const GangJob& job);
  // Whether a gang that is refused for this reason has a job that is over, or runs again elsewhere.
  [[nodiscard]] static bool IsJobOver(const Error& why) { return why.code == Errc::kDenied; }
  // Whether the outcome of the swap must be known: tried until the store has answered, for kSwapFor.
  [[nodiscard]] bool ForSure() const { return origin_.promised; }
  [[nodiscard]] const GangJob& job() const { return job_; }
  [[nodiscard]] NameClaim& claim() { return claim_; }

 private:
  [[nodiscard]] Status MayTake(const GangRecord& record) const;
  [[nodiscard]] bool MayHoldName(const GangRecord& record) const;
  [[nodiscard]] Status MayReturn(const GangRecord& record, const std::set<uint32_t>& here) const;
  [[nodiscard]] bool AwaitsSuccessor(Nanos now) const;
  [[nodiscard]] GangRecord Named(GangRecord record, uint64_t term) const;

  Origin origin_;
  GangJob job_;
  std::string self_;  // this host
  Until until_;
  NameClaim claim_;
};

}  // namespace muster
