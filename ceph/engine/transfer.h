// Moving the chunks of one shard, a window of them at a time, and what transfers share.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "ceph/base/worker_pool.h"
#include "ceph/engine/engine.h"

namespace muster {

// Memory for one chunk.
struct ChunkBuffer {
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

// What all transfers of an engine share: threads, the store, the limited number of buffers. Thread-safe.
class TransferContext {
 public:
  TransferContext(std::shared_ptr<Store> store, const EngineOptions& options);
  // Waits for all transfers.
  ~TransferContext();
  TransferContext(const TransferContext&) = delete;
  TransferContext& operator=(const TransferContext&) = delete;

  // Calls `then` on an engine thread with a buffer of at least `bytes` as soon as one is free; first come,
  // first served. Every buffer must be given back.
  void TakeBuffer(size_t bytes, std::function<void(ChunkBuffer)> then);
  void GiveBuffer(ChunkBuffer buffer);

  void TransferBegins();
  void TransferEnds();
  // The engine is being destroyed: nothing is tried again.
  [[nodiscard]] bool closing() const;

  Store& store() { return *store_; }
  WorkerPool& pool() { return pool_; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }

 private:
  struct Waiting {
    size_t bytes;
    std::function<void(ChunkBuffer)> then;
  };
  void Hand(ChunkBuffer buffer, Waiting to);

  const std::shared_ptr<Store> store_;
  const EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  size_t transfers_ = 0;
  bool closing_ = false;
  size_t lent_ = 0;
  std::vector<ChunkBuffer> free_;
  std::deque<Waiting> waiting_;
  WorkerPool pool_;  // last: its tasks use the rest
};

// One shard's way. A subclass says what happens with a chunk; this class keeps the window, tries again what
// may be tried again, stops at the first error and tells the end once, when nothing of it is under way any
// more.
class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(TransferContext& context, uint64_t bytes, uint64_t chunk_bytes);
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  void Start();

 protected:
  // The buffer has room for the chunk and one byte more (to see that an object is too long).
  struct Chunk {
    size_t index = 0;
    size_t bytes = 0;
    ChunkBuffer buffer;
    int attempts = 0;
  };

  // Once, before the first attempt. On an engine thread.
  virtual Status Prepare(Chunk& chunk) = 0;
  // Starts the store operation; `done` may be called on any thread.
  virtual void Attempt(Chunk& chunk, std::function<void(Status)> done) = 0;
  // After the attempt that succeeded. On an engine thread.
  virtual Status Complete(Chunk& chunk) = 0;
  // The end; the error is that of the lowest chunk which has failed.
  virtual void Finish(Status status) = 0;

  [[nodiscard]] uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] size_t chunk_count() const { return chunk_count_; }
  TransferContext& context() { return context_; }

 private:
  using SharedChunk = std::shared_ptr<Chunk>;

  void Launch();
  void TryOnce(const SharedChunk& chunk);
  void AttemptEnded(const SharedChunk& chunk, const Status& status);
  void ChunkEnded(const SharedChunk& chunk, const Status& status);

  TransferContext& context_;
  const uint64_t bytes_;
  const uint64_t chunk_bytes_;
  const size_t chunk_count_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  size_t next_ = 0;
  size_t under_way_ = 0;
  std::optional<size_t> failed_chunk_;
  Status result_;
};

}  // namespace muster
