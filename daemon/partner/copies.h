// The copies of other nodes' shards that this node keeps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/manifest.h"
#include "daemon/partner/chunk_memory.h"

namespace muster {

// Which shard: a gang's, of a committed checkpoint that is known by the generation that saved it and its step.
struct CopyName {
  std::string gang;
  uint64_t generation = 0;
  uint64_t step = 0;
  uint32_t rank = 0;

  bool operator==(const CopyName&) const = default;
};

using CopyChunks = std::vector<std::shared_ptr<const MemoryChunk>>;  // null: it is not here

// Moves those that are there to the others that are given back.
void DropChunks(CopyChunks&& chunks, CopyChunks* dropped);

// What is here of a shard now; each chunk had its digest when it came.
struct ShardCopy {
  std::shared_ptr<const Shard> shard;
  CopyChunks chunks;
};

// Chunks as pairs of the first and how many in sequence: adds one that is behind all others.
void AddToRuns(uint64_t chunk, std::vector<uint64_t>* runs);
// Those that are not there (or, with `present`, are).
std::vector<uint64_t> ChunkRuns(const CopyChunks& chunks, bool present);

// Whether a shard's numbers fit together, and are within what a node takes.
Status CheckShardNumbers(const Shard& shard, uint64_t max_bytes);

// Thread-safe. One copy of each rank, the newest. Only shards of committed checkpoints are offered, and a gang starts from
// the newest of those: so what was there before is of no use when one comes, but for the chunks that did not change, which
// the new copy takes over. The others are let go first, and a copy needs no more memory than its shard. One that does not
// arrive whole serves with what it has. What is dropped is given back, for its owner to let go where there is time.
class PartnerCopies {
 public:
  using Dropped = CopyChunks;

  PartnerCopies(std::shared_ptr<ChunkMemory> memory, uint64_t max_shard_bytes);

  // A generation begins, which starts from a checkpoint (none: generation 0). Its copies are kept, no others, and those of
  // `ranks` are taken from now on. Nothing when it has begun already, or a later one has.
  [[nodiscard]] Dropped Begin(const std::string& gang, uint64_t generation,
                              const std::vector<uint32_t>& ranks, uint64_t restore_generation,
                              uint64_t restore_step);
  // A checkpoint of this generation is committed: what earlier ones have left, and nobody will replace here, goes.
  [[nodiscard]] Dropped Committed(const std::string& gang, uint64_t generation);
  [[nodiscard]] Dropped End(const std::string& gang);

  // A shard is offered: what is here of it already stays. kConflict: its generation does not run here, or this or a newer
  // copy is here; kDenied: this node is not the rank's partner; kInvalid; kExhausted: there is no memory for it.
  // `missing`: runs of the chunks that are to come.
  Status Offer(const CopyName& name, Shard shard, std::vector<uint64_t>* missing, Dropped* dropped);
  // Room for one of them, and the chunk itself. kConflict: it is not wanted any more.
  Result<std::shared_ptr<MemoryChunk>> RoomFor(uint64_t bytes);
  Status Put(const CopyName& name, size_t chunk, std::shared_ptr<const MemoryChunk> data);

  // Without a shard: it is not here.
  [[nodiscard]] ShardCopy Find(const CopyName& name) const;
  [[nodiscard]] uint64_t bytes() const { return memory_->used(); }

 private:
  struct Copy {
    CopyName name;
    std::shared_ptr<const Shard> shard;
    CopyChunks chunks;
  };
  struct Gang {
    uint64_t generation = 0;
    std::set<uint32_t> ranks;
    std::map<uint32_t, Copy> copies;  // by rank
  };
  template <typename Which>
  static Dropped DropIf(Gang& gang, Which which);
  Result<Gang*> TakerOf(const CopyName& name);

  const std::shared_ptr<ChunkMemory> memory_;
  const uint64_t max_shard_bytes_;
  mutable std::mutex mutex_;
  std::map<std::string, Gang> gangs_;
};

}  // namespace muster
