// The shards that this node's members have saved: where other nodes find them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ceph/catalog/manifest.h"
#include "ceph/engine/staged_memory.h"
#include "daemon/partner/copies.h"

namespace muster {

// A member's shard of a committed checkpoint, in the memory in which it was staged. The program may write over that at any
// time: then nobody gets this one, but the next.
struct CommittedShard {
  uint64_t generation = 0;
  uint64_t step = 0;
  Shard shard;
  std::shared_ptr<StagedMemory> memory;
};

// Thread-safe. It keeps no memory: a shard whose owner lets go of it is not found any more.
class OwnShards {
 public:
  // Takes the place of the same ranks' older ones.
  void Committed(const std::string& gang, const std::vector<CommittedShard>& shards);
  void End(const std::string& gang);
  // To let go of what it gives may take long: see StagedMemory.
  struct Held {
    std::shared_ptr<const Shard> shard;
    std::shared_ptr<StagedMemory> memory;
  };
  [[nodiscard]] std::optional<Held> Find(const CopyName& name) const;

 private:
  struct Own {
    uint64_t generation = 0;
    uint64_t step = 0;
    std::shared_ptr<const Shard> shard;
    std::weak_ptr<StagedMemory> memory;
  };
  mutable std::mutex mutex_;
  std::map<std::string, std::map<uint32_t, Own>> gangs_;  // by rank
};

}  // namespace muster
