// Moves shards between staging memory and the store: cut into chunks, digests on the way, a window of
// operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ceph/catalog/manifest.h"
#include "ceph/store/store.h"
#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace muster {

struct EngineOptions {
  uint64_t chunk_bytes = 4 << 20;
  size_t window = 8;    // chunks in flight per shard
  size_t buffers = 16;  // chunks in flight in all, each a buffer of chunk_bytes; shards take turns
  size_t threads = 2;   // digesting and driving; the store has its own
  // An operation that fails with kUnavailable is tried again after a pause that doubles from first_pause, as
  // long as fewer than `attempts` were made and the shard's first chunk was begun less than `retry_for` ago.
  int attempts = 4;
  std::chrono::milliseconds first_pause{250};
  std::chrono::milliseconds retry_for{60'000};
};

// Thread-safe. Callbacks run on an engine thread and must not block. The destructor waits for what is in
// flight.
class Engine {
 public:
  Engine(std::shared_ptr<Store> store, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Writes the first `bytes` bytes of the memfd as shard `rank` of a checkpoint; objects are named
  // "data/KEY/STEP.TERM.GENERATION/RANK.CHUNK", so two generations never write the same object. `memory` must
  // be a memfd sealed against shrinking (kInvalid if not, or if it is smaller than `bytes`: hostile input).
  // It is read, not mapped: a job cannot make the daemon fault, nor allocate the holes of a sparse memfd, nor
  // change a chunk between its digest and its write. All chunks are durable when `done` gets the shard.
  void WriteShard(const std::string& space, const std::string& key, uint64_t step, const Fence& fence,
                  uint32_t rank, UniqueFd memory, uint64_t bytes, std::function<void(Result<Shard>)> done);

  // Reads a shard into a new memfd, sealed (no write, no shrink, no grow), every chunk verified. kCorrupt
  // names the object and what is wrong: missing, size, digest. kUnavailable: the store did not answer.
  void ReadShard(const std::string& space, const Shard& shard, std::function<void(Result<UniqueFd>)> done);

  // Reads every chunk of every shard and checks it; blocks. The first bad one is the error.
  Status Verify(const std::string& space, const Manifest& manifest);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
