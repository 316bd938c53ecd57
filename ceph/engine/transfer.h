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
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "ceph/engine/chunk_codec.h"
#include "ceph/engine/depth.h"
#include "ceph/engine/engine.h"

namespace muster {

// Memory for one chunk; null where none is asked for.
using ChunkBuffer = std::unique_ptr<StoreBuffer>;

// Whose a shard is: its gang's, however many members of it are on this node.
std::string OwnerOf(const std::string& space, const Shard& shard);

// What all transfers of an engine in one direction share: threads, the store, the limited number of buffers. Thread-safe.
class TransferContext {
 public:
  // `name` and `niceness`: of its threads.
  TransferContext(std::shared_ptr<Store> store, const EngineOptions& options, const char* name, int niceness);
  // Waits for all transfers.
  ~TransferContext();
  TransferContext(const TransferContext&) = delete;
  TransferContext& operator=(const TransferContext&) = delete;

  // Calls `then` on an engine thread with a buffer of at least `bytes` (0: only with the right to have so much memory in
  // use) as soon as one is free; owners take turns, and of one owner the first that comes is the first served. Every buffer
  // must be given back.
  void TakeBuffer(const std::string& owner, size_t bytes, std::function<void(ChunkBuffer)> then);
  void GiveBuffer(ChunkBuffer buffer);

  void TransferBegins();
  void TransferEnds();
  // How many chunks of a shard may be under way.
  [[nodiscard]] size_t window() const;
  // When the store last answered any of the transfers; `done`: an operation has been carried out.
  void Answered(bool done);
  // An operation with so many bytes has been carried out, and took so long.
  void Carried(uint64_t bytes, std::chrono::nanoseconds took);
  [[nodiscard]] StoreUse use() const;
  [[nodiscard]] std::chrono::steady_clock::time_point answered_at() const;
  // The engine is being destroyed: nothing is tried again.
  void Close();
  [[nodiscard]] bool closing() const;

  Store& store() { return *store_; }
  WorkerPool& pool() { return pool_; }
  CodecPool& codecs() { return codecs_; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }

 private:
  struct Waiting {
    size_t bytes;
    std::function<void(ChunkBuffer)> then;
  };
  struct Queue {
    std::string owner;
    std::deque<Waiting> waiting;  // never empty
  };
  void Hand(ChunkBuffer buffer, Waiting to);
  // Under mutex_, as HandOut. Not all buffers for one shard: others come, and have theirs to begin with at once.
  [[nodiscard]] size_t Window() const;
  // Those who wait get what is free.
  void HandOut();
  // What was kept for the next transfer, when none has come for a while.
  void LetGo();

  const std::shared_ptr<Store> store_;
  const EngineOptions options_;
  CodecPool codecs_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  size_t transfers_ = 0;
  bool closing_ = false;
  std::chrono::steady_clock::time_point answered_at_{};
  StoreUse use_;
  Depth depth_;  // of `buffers`
  size_t lent_ = 0;
  std::vector<ChunkBuffer> free_;
  bool letting_go_ = false;  // LetGo is posted
  std::chrono::steady_clock::time_point idle_since_{};
  std::deque<Queue> queues_;  // whose turn it is first
  WorkerPool pool_;           // last: its tasks use the rest
};

// One shard's way. A subclass says what happens with a chunk; this class keeps the window, tries again what
// may be tried again, stops at the first error and tells the end once, when nothing of it is under way any
// more.
//
// When an operation fails that may be tried again, no further one is begun until a pause is over, which doubles with each
// such failure; the chunk gives its buffer back, so that others who share the store's buffers are not held up.
class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  // `owner`: see TransferContext::TakeBuffer. `buffer_bytes`: of the memory that each chunk needs. `on_delay`: see
  // Engine::WriteShard; empty: it fails after EngineOptions::attempts.
  Transfer(TransferContext& context, std::string owner, uint64_t bytes, uint64_t chunk_bytes,
           size_t buffer_bytes, OnDelay on_delay = {});
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  void Start();
  // Ends it with this error, unless it has ended: as soon as no thread is in Prepare, though operations are under way.
  void Cancel(Error why);
  // Ends it with this error, unless it has ended or failed: when nothing of it is under way any more.
  void GiveUpWith(Error why);

 protected:
  struct Chunk {
    size_t index = 0;
    size_t bytes = 0;
    ChunkBuffer buffer;
    int attempts = 0;
  };

  enum class Next { kAttempt, kNothing };
  // Before each attempt; says whether one is needed. On an engine thread.
  virtual Result<Next> Prepare(Chunk& chunk) = 0;
  // Starts the store operation; `done` may be called on any thread.
  virtual void Attempt(Chunk& chunk, std::function<void(Status)> done) = 0;
  // For Attempt: `done`, and before it the operation with so many bytes is counted (TransferContext::use).
  std::function<void(Status)> Counted(uint64_t bytes, std::function<void(Status)> done);
  // After the attempt that succeeded. On an engine thread. Not after Finish.
  virtual Status Complete(Chunk& chunk) = 0;
  // The end, once; the error is that of the lowest chunk which has failed. Nothing is in Prepare or Complete.
  virtual void Finish(Status status) = 0;

  [[nodiscard]] uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] size_t chunk_count() const { return chunk_count_; }
  TransferContext& context() { return context_; }

 private:
  using SharedChunk = std::shared_ptr<Chunk>;
  using Clock = std::chrono::steady_clock;
  struct Again {
    size_t index;
    int attempts;
  };

  void Launch();
  void TryOnce(const SharedChunk& chunk);
  void AttemptEnded(const SharedChunk& chunk, const Status& status);
  void ChunkEnded(const SharedChunk& chunk, const Status& status);
  bool PutOff(const SharedChunk& chunk, const Error& error);
  void Resume();
  void WatchForSilence();
  void TellDelay(const Status& status);
  bool Enter();
  void Leave();
  void EndIfOver();

  TransferContext& context_;
  const std::string owner_;
  const uint64_t bytes_;
  const uint64_t chunk_bytes_;
  const size_t buffer_bytes_;
  const size_t chunk_count_;
  const OnDelay on_delay_;
  const Clock::time_point begun_ = Clock::now();
  std::mutex mutex_;
  size_t next_ = 0;
  std::deque<Again> again_;
  size_t under_way_ = 0;
  Clock::time_point asking_since_;  // without a time in which nothing was under way
  size_t inside_ = 0;               // of them, in Prepare, Attempt or Complete now
  bool pausing_ = false;
  int pauses_ = 0;  // since the last success
  bool cancelled_ = false;
  bool given_up_ = false;
  std::optional<size_t> failed_chunk_;
  Status result_;
  bool finished_ = false;     // Finish is called, or has been
  bool told_over_ = false;    // Finish has returned
  bool ended_ = false;        // TransferEnds is called
  std::mutex telling_;        // one call of on_delay_ at a time
  std::optional<Errc> told_;  // why it is delayed; under telling_
};

}  // namespace muster
