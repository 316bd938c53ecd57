#include "ceph/engine/transfer.h"

#include <algorithm>
#include <utility>

namespace muster {

TransferContext::TransferContext(std::shared_ptr<Store> store, const EngineOptions& options)
    : store_(std::move(store)), options_(options), pool_(options.threads, "muster-engine") {}

TransferContext::~TransferContext() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  idle_.wait(lock, [this] { return transfers_ == 0; });
}

void TransferContext::TakeBuffer(size_t bytes, std::function<void(ChunkBuffer)> then) {
  ChunkBuffer buffer;
  {
    const std::lock_guard lock(mutex_);
    if (lent_ >= std::max<size_t>(options_.buffers, 1)) {
      waiting_.push_back({bytes, std::move(then)});
      return;
    }
    ++lent_;
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
  }
  Hand(std::move(buffer), {bytes, std::move(then)});
}

void TransferContext::GiveBuffer(ChunkBuffer buffer) {
  Waiting next;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      --lent_;
      free_.push_back(std::move(buffer));
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  Hand(std::move(buffer), std::move(next));
}

void TransferContext::Hand(ChunkBuffer buffer, Waiting to) {
  auto shared = std::make_shared<ChunkBuffer>(std::move(buffer));
  pool_.Post([shared, to = std::move(to)] {
    if (shared->capacity < to.bytes) {
      // Not zeroed: every byte is written before it is read.
      *shared = {std::make_unique_for_overwrite<std::byte[]>(to.bytes), to.bytes};
    }
    to.then(std::move(*shared));
  });
}

void TransferContext::TransferBegins() {
  const std::lock_guard lock(mutex_);
  ++transfers_;
}

void TransferContext::TransferEnds() {
  const std::lock_guard lock(mutex_);
  // Between checkpoints the daemon keeps no buffers.
  if (--transfers_ == 0) free_.clear();
  idle_.notify_all();
}

bool TransferContext::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

Transfer::Transfer(TransferContext& context, uint64_t bytes, uint64_t chunk_bytes)
    : context_(context),
      bytes_(bytes),
      chunk_bytes_(chunk_bytes),
      chunk_count_(static_cast<size_t>(bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0))) {}

void Transfer::Start() {
  context_.TransferBegins();
  const auto self = shared_from_this();
  if (chunk_count_ > 0) return Launch();
  context_.pool().Post([self] {
    self->Finish({});
    self->context_.TransferEnds();
  });
}

void Transfer::Launch() {
  size_t begin = 0;
  size_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failed_chunk_) return;
    begin = next_;
    const size_t window = std::max<size_t>(context_.options().window, 1);
    end = std::min(chunk_count_, begin + (under_way_ < window ? window - under_way_ : 0));
    under_way_ += end - begin;
    next_ = end;
  }
  for (size_t i = begin; i < end; ++i) {
    auto chunk = std::make_shared<Chunk>();
    chunk->index = i;
    chunk->bytes = static_cast<size_t>(std::min(chunk_bytes_, bytes_ - i * chunk_bytes_));
    context_.TakeBuffer(static_cast<size_t>(chunk_bytes_) + 1,
                        [self = shared_from_this(), chunk](ChunkBuffer buffer) {
                          chunk->buffer = std::move(buffer);
                          if (Status status = self->Prepare(*chunk); !status)
                            return self->ChunkEnded(chunk, status);
                          self->TryOnce(chunk);
                        });
  }
}

void Transfer::TryOnce(const SharedChunk& chunk) {
  ++chunk->attempts;
  Attempt(*chunk, [self = shared_from_this(), chunk](const Status& status) {
    self->context_.pool().Post([self, chunk, status] { self->AttemptEnded(chunk, status); });
  });
}

void Transfer::AttemptEnded(const SharedChunk& chunk, const Status& status) {
  if (status) return ChunkEnded(chunk, Complete(*chunk));
  const EngineOptions& options = context_.options();
  const bool again = status.error().code == Errc::kUnavailable && chunk->attempts < options.attempts &&
                     std::chrono::steady_clock::now() - begun_ < options.retry_for && !context_.closing();
  if (!again) return ChunkEnded(chunk, status);
  const auto pause = options.first_pause * (1 << std::min(chunk->attempts - 1, 8));
  context_.pool().PostAfter(pause, [self = shared_from_this(), chunk] { self->TryOnce(chunk); });
}

void Transfer::ChunkEnded(const SharedChunk& chunk, const Status& status) {
  context_.GiveBuffer(std::move(chunk->buffer));
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    if (!status && (!failed_chunk_ || chunk->index < *failed_chunk_)) {
      failed_chunk_ = chunk->index;
      result_ = status;
    }
    --under_way_;
    last = under_way_ == 0 && (failed_chunk_ || next_ == chunk_count_);
  }
  if (!last) return Launch();
  Finish(result_);
  context_.TransferEnds();
}

}  // namespace muster
