// A gang's part in second copies on this node: who keeps whose, what is sent, what is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/copy_fetch.h"
#include "daemon/partner/copy_sender.h"
#include "daemon/partner/parity_builder.h"
#include "daemon/partner/parity_group.h"
#include "daemon/partner/ring.h"
#include "daemon/partner/tier.h"

namespace muster {

// On the loop's thread. Nothing here waits: what takes time to let go is given to the tier's worker. The tier outlives it.
class GangPartner {
 public:
  GangPartner(PartnerTier& tier, std::string gang);
  ~GangPartner();
  GangPartner(const GangPartner&) = delete;
  GangPartner& operator=(const GangPartner&) = delete;

  // A generation begins with this roster, from this checkpoint (none: generation 0). `self`: this node's name. Nothing when
  // it is the one that runs.
  void Begin(uint64_t generation, Roster roster, const std::string& self, uint64_t restore_generation,
             uint64_t restore_step);
  // A checkpoint is committed; the shards of this node's members.
  void Committed(uint64_t generation, uint64_t step, std::vector<CommittedShard> shards);

  // Asks the node that keeps a copy of this rank's shard, as saved by one of `savers` members in that generation, or those
  // that have it together (`partners`: their names). False: it is not known who; else `done` is called on another thread.
  using Fetched = std::function<void(const std::string& partners, Result<FetchedCopy> copy)>;
  bool Fetch(uint32_t rank, uint64_t generation, uint64_t step, uint32_t savers, Fetched done);

 private:
  void Let(PartnerCopies::Dropped dropped);

  PartnerTier& tier_;
  const std::string gang_;
  // Of this generation, and of the one whose checkpoint it started from.
  std::map<uint64_t, Roster> rosters_;
  uint64_t generation_ = 0;
  std::string partner_;  // who keeps this node's shards; "": nobody, or a group
  std::shared_ptr<CopySender> sender_;
  std::optional<ParityGroup> group_;
  std::optional<uint64_t> committed_;  // the newest step of this generation
  std::shared_ptr<ParityBuilder> builder_;
  std::shared_ptr<Cancel> cancel_ = std::make_shared<Cancel>();
  std::shared_ptr<WorkerPool> fetchers_;  // made with the first
};

}  // namespace muster
