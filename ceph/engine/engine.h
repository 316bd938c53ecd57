// Moves shards between staging memory and the store: cut into chunks, digests on the way, a window of
// operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "ceph/catalog/manifest.h"
#include "ceph/engine/staged_memory.h"
#include "ceph/store/store.h"

namespace muster {

struct EngineOptions {
  uint64_t chunk_bytes = 4 << 20;
  size_t window = 8;    // chunks in flight per shard, at first
  size_t buffers = 16;  // chunks in flight in all, each a buffer of chunk_bytes; shards take turns
  // Where more of both make the store faster there are up to so many buffers, of so many bytes, and as much more in flight
  // per shard (ceph/engine/depth.h). Not above `buffers`: there are always those.
  size_t most_buffers = 64;
  uint64_t most_buffer_bytes = 256 << 20;
  // An engine that has nothing to write keeps `buffers` of them so long, of so many bytes at most: memory that is new costs as
  // much as what is done with it.
  std::chrono::milliseconds keep_for{30'000};
  uint64_t keep_bytes = 64 << 20;
  size_t threads = 2;  // digesting and driving; the store has its own
  // Of the threads that write. A program that uses all processors has them before its drain has; who restores waits for it.
  int write_niceness = 10;
  // Whether chunks are compressed where that pays. Besides the buffers, compressing takes the memory of one more chunk, and
  // reading what is compressed of two, for each of `threads`, and about 2 MiB of tables.
  bool compress = false;
  // An operation that fails with kUnavailable is tried again after a pause that doubles from first_pause to longest_pause,
  // as long as fewer than `attempts` were made and the shard's first chunk was begun less than `retry_for` ago. Writes
  // with an OnDelay go on without these two limits.
  int attempts = 4;
  std::chrono::milliseconds first_pause{250};
  std::chrono::milliseconds longest_pause{5'000};
  std::chrono::milliseconds retry_for{60'000};
  // A store that answers nobody for so long delays the writes.
  std::chrono::milliseconds silence{5'000};
};

// Told on an engine thread: the store does not take a write now, and why (kExhausted: it is full; kUnavailable: it does not
// answer); it is tried again until it is taken or stopped. Success: the store takes it again. Must not block.
using OnDelay = std::function<void(const Status&)>;

// Who waits for what is read; nobody: all of it is read in any case.
using Reader = std::optional<std::weak_ptr<const void>>;

// A write under way. Thread-safe; not to be used when its engine is gone.
class ShardWrite {
 public:
  virtual ~ShardWrite() = default;
  // Ends it with this error, unless it has ended. `done` is called soon, also when the store does not answer; the memory is
  // not read any more then. What operations that are under way still write is an orphan.
  virtual void Stop(Error why) = 0;
  // Ends it with this error, unless it has ended or failed: nothing more is begun, and `done` is called when what is under way
  // has ended, so that nothing is written after it.
  virtual void GiveUp(Error why) = 0;
};

// What a shard may share chunks with.
struct ShardBase {
  // An older shard of the same rank, or null. Its objects must stay until the new one's checkpoint is committed, see
  // Catalog::Commit.
  std::shared_ptr<const Shard> shard;
  // Counts the saves: each writes a few of the unchanged chunks all the same, and each chunk has its turn within
  // kRewriteEvery saves. An object that was damaged unseen is not in all checkpoints for ever then.
  uint64_t turn = 0;
};
inline constexpr uint64_t kRewriteEvery = 64;

// What the store has carried out in one direction, since the engine was made.
struct StoreUse {
  uint64_t operations = 0;
  std::chrono::nanoseconds took{0};  // added up
  uint64_t bytes = 0;
};

// Thread-safe. Writing and reading have buffers and threads of their own, as many as the options say; gangs take turns with
// the buffers, so that one with many members here gets no more than another. Callbacks run on one of
// these threads and must not block. The destructor waits for what is in
// flight.
class Engine {
 public:
  Engine(std::shared_ptr<Store> store, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Writes the first `bytes` bytes of the memory as shard `rank` of a checkpoint; its objects are named `prefix` (ShardPrefix)
  // and the chunk's number. Nothing else must ever have been written under that prefix: a checkpoint may consist of it.
  // kInvalid when the memory is smaller. What is written is a copy, so a job cannot change a chunk between its digest and its
  // write; all chunks are durable when `done` gets the shard. A chunk that has the same digest in `base` is not written again: the new shard
  // names the object that has it, encoded as that is.
  // Without `on_delay` a store that is full (kExhausted) or does not answer (kUnavailable) is the end of it, the latter
  // after EngineOptions::attempts; with it the write goes on until it is done or stopped. nullptr: it has ended already.
  std::shared_ptr<ShardWrite> WriteShard(const std::string& space, const std::string& prefix, uint32_t rank,
                                         StagedMemory& memory, uint64_t bytes, ShardBase base,
                                         std::function<void(Result<Shard>)> done, OnDelay on_delay = {});

  // Whether the memory still holds the shard: seals it, for ever, and compares every chunk. Success: it can be handed to
  // the shard's owner instead of what ReadShard would give. kConflict: it cannot be sealed; kCorrupt: it holds something
  // else. The memory must be there until `done` is called.
  void CheckStaged(const Shard& shard, StagedMemory& memory, std::function<void(Status)> done);

  // Reads a shard into a new memfd, sealed (no write, no shrink, no grow), every chunk verified. kCorrupt
  // names the object and what is wrong: missing, size, encoding, digest. kUnavailable: the store did not answer. When
  // `reader` has gone it ends before the next chunk, with kConflict.
  void ReadShard(const std::string& space, const Shard& shard, std::function<void(Result<UniqueFd>)> done,
                 const Reader& reader = std::nullopt);

  // Reads bytes `offset` to `offset` + `bytes` - 1 of a shard into a new memfd of so many bytes, as ReadShard does: only the
  // chunks that have some of them are read, each is verified as a whole. kInvalid: the shard has no such bytes.
  void ReadRange(const std::string& space, const Shard& shard, uint64_t offset, uint64_t bytes,
                 std::function<void(Result<UniqueFd>)> done);

  // The same for a shard of which some chunks are in `memory` already (of all its bytes, not sealed): those that `have` says,
  // one flag for each chunk, are taken as they are, and the others are read.
  void ReadMissing(const std::string& space, const Shard& shard, UniqueFd memory, std::vector<bool> have,
                   std::function<void(Result<UniqueFd>)> done);

  // Reads every chunk of a shard and checks it; the first bad one is the error.
  void VerifyShard(const std::string& space, const Shard& shard, std::function<void(Status)> done);
  // The same for every shard; blocks.
  Status Verify(const std::string& space, const Manifest& manifest);

  [[nodiscard]] StoreUse writes() const;
  [[nodiscard]] StoreUse reads() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
