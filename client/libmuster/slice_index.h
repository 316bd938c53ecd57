// Which parts of which tensors the members have saved: the indexes of a checkpoint's shards, read when they are needed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/shard_reader.h"
#include "client/libmuster/shard_view.h"
#include "client/libmuster/slice.h"

namespace muster::client {

class SliceIndex {
 public:
  SliceIndex() = default;
  SliceIndex(const SliceIndex&) = delete;
  SliceIndex& operator=(const SliceIndex&) = delete;
  ~SliceIndex() { Clear(); }

  void Clear();
  // Of a checkpoint that so many members have saved. False when there is no memory.
  [[nodiscard]] bool Begin(uint64_t step, uint32_t world_size);
  [[nodiscard]] bool holds(uint64_t step) const { return shards_ != nullptr && step_ == step; }
  [[nodiscard]] uint64_t step() const { return step_; }
  [[nodiscard]] uint32_t world_size() const { return world_size_; }

  // The parts of a name in one shard, one after the other. `out->meta` lives as long as the index.
  struct Cursor {
    const char* name;
    uint32_t rank;
    uint32_t next = 0;  // the how many-th part
  };
  // MUSTER_OK with *found, or the session's error (and ShardReader::kChanged).
  int Next(Session* session, ShardReader* reader, Cursor* cursor, StoredSlice* out, uint64_t* data_at,
           bool* found);

 private:
  int Load(Session* session, ShardReader* reader, uint32_t rank);

  uint64_t step_ = 0;
  uint32_t world_size_ = 0;
  struct Slot {
    ShardView* view;  // nullptr: not read yet
  };
  Slot* shards_ = nullptr;  // by rank
};

}  // namespace muster::client
