// The members' shards that this node still has in memory: a program that is started again gets its own back from there,
// without the store. What is here may have been written over since it was saved; Engine::CheckStaged finds out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "ceph/catalog/manifest.h"
#include "ceph/engine/staged_memory.h"

namespace muster {

struct HeldShard {
  uint64_t generation = 0;  // that saved it
  uint64_t step = 0;
  uint32_t world_size = 0;
  Shard shard;
  std::shared_ptr<StagedMemory> memory;
};

// Not thread-safe. Nothing here waits: memory that is let go is given back, for its owner to drop it where there is time.
class HeldShards {
 public:
  using Dropped = std::vector<std::shared_ptr<StagedMemory>>;

  // The memory that comes with a save. A shard that the memory held is not held any more. A member has two memories: a third one takes
  // the place of the oldest, whose shards are not held any more either.
  // kInvalid: it is no staging memory.
  Result<std::shared_ptr<StagedMemory>> Take(uint32_t rank, UniqueFd&& memory, Dropped* dropped);
  // The save is durable. Gives its memory back when newer saves have taken its place.
  [[nodiscard]] Dropped Hold(HeldShard held);
  // All of a checkpoint is durable: older ones are not needed, unless a member might write over the memory at any time.
  // What earlier generations have left is not needed either.
  [[nodiscard]] Dropped Committed(uint64_t generation, uint64_t step);
  // A generation begins that starts from this checkpoint (none: generation 0): only its shards are kept, up to `limit`
  // bytes of them.
  [[nodiscard]] Dropped Begin(uint64_t generation, uint64_t step, uint64_t limit);
  // All of it.
  [[nodiscard]] Dropped End() { return Begin(0, 0, 0); }
  // nullptr when it is not here.
  [[nodiscard]] const HeldShard* Find(uint32_t rank, uint64_t generation, uint64_t step) const;
  [[nodiscard]] Dropped Drop(uint32_t rank, uint64_t generation, uint64_t step);
  // What generations before this one have left of a rank.
  [[nodiscard]] Dropped DropBefore(uint32_t rank, uint64_t generation);

 private:
  struct Member {
    std::vector<std::shared_ptr<StagedMemory>> memories;  // of this generation's saves
    std::vector<HeldShard> held;
  };
  template <typename Which>
  void DropIf(Member& member, Dropped* dropped, Which which);

  std::map<uint32_t, Member> members_;  // by rank
};

}  // namespace muster
