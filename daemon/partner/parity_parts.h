// The parity of other nodes' shards that this node keeps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/manifest.h"
#include "daemon/partner/chunk_memory.h"
#include "daemon/partner/copies.h"
#include "daemon/partner/parity_group.h"

namespace muster {

// A shard, and which part of it is in a node's parity.
struct ParityMember {
  std::shared_ptr<const Shard> shard;
  ChunkSpan part;

  [[nodiscard]] bool Has(uint64_t row) const { return row < part.count; }
  [[nodiscard]] uint64_t ChunkOf(uint64_t row) const { return part.first + row; }
};

// What is here for one shard: row i is the exclusive or of chunk part.first + i and of what ranks `with` have in the row.
struct ParityOf {
  std::shared_ptr<const Shard> shard;  // null: there is none
  ChunkSpan part;
  std::vector<uint32_t> with;
  CopyChunks rows;  // null: it is not here
};

// Thread-safe. For each gang and slot (parity_group.h) the rows of one checkpoint, the newest: as in PartnerCopies, rows of
// which no chunk has changed are taken over, the others are let go first, and what is dropped is given back.
class ParityParts {
 public:
  using Dropped = CopyChunks;

  explicit ParityParts(std::shared_ptr<ChunkMemory> memory) : memory_(std::move(memory)) {}

  // A generation begins, which starts from a checkpoint (none: generation 0): only its parity is kept.
  [[nodiscard]] Dropped Begin(const std::string& gang, uint64_t generation, uint64_t restore_generation,
                              uint64_t restore_step);
  // A checkpoint of this generation is committed, in whose group there are so many slots (0: no group): what earlier ones
  // have left, and nobody will replace here, goes.
  [[nodiscard]] Dropped Committed(const std::string& gang, uint64_t generation, size_t slots);
  [[nodiscard]] Dropped End(const std::string& gang);

  // The shards of a slot are these, of a committed checkpoint of the generation that runs. kConflict: another one
  // runs, or what is here is newer;
  // kExhausted: there is no memory for them. `missing`: the rows that are to be put, in order.
  Status Take(const std::string& gang, uint64_t generation, uint64_t step, size_t slot,
              std::vector<ParityMember> members, std::vector<uint64_t>* missing, Dropped* dropped);
  Result<std::shared_ptr<MemoryChunk>> RoomFor(uint64_t bytes);
  // kConflict: it is not wanted any more.
  Status Put(const std::string& gang, uint64_t generation, uint64_t step, size_t slot, uint64_t row,
             std::shared_ptr<const MemoryChunk> data);

  [[nodiscard]] ParityOf Find(const CopyName& name) const;

 private:
  struct Slot {
    uint64_t generation = 0;
    uint64_t step = 0;
    std::vector<ParityMember> members;
    CopyChunks rows;
  };
  struct Gang {
    uint64_t generation = 0;
    std::map<size_t, Slot> slots;
  };
  template <typename Which>
  static Dropped DropIf(Gang& gang, Which which);

  const std::shared_ptr<ChunkMemory> memory_;
  mutable std::mutex mutex_;
  std::map<std::string, Gang> gangs_;
};

// Of the largest chunk in a row.
uint64_t RowBytes(const std::vector<ParityMember>& members, uint64_t row);

}  // namespace muster
