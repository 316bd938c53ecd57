#include "ceph/engine/transfer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster {
namespace {

// As many as have so many bytes.
size_t Within(uint64_t bytes, size_t most, const EngineOptions& options) {
  return static_cast<size_t>(std::min<uint64_t>(most, bytes / std::max<uint64_t>(options.chunk_bytes, 1)));
}

}  // namespace

// A prefix is "data/KEY/STEP...".
std::string OwnerOf(const std::string& space, const Shard& shard) {
  return space + "/" + shard.prefix.substr(0, shard.prefix.find('/', shard.prefix.find('/') + 1));
}

TransferContext::TransferContext(std::shared_ptr<Store> store, const EngineOptions& options, const char* name,
                                 int niceness)
    : store_(std::move(store)),
      options_(options),
      depth_(options.buffers, Within(options.most_buffer_bytes, options.most_buffers, options)),
      pool_(options.threads, name, niceness) {}

void TransferContext::Close() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
}

TransferContext::~TransferContext() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  idle_.wait(lock, [this] { return transfers_ == 0; });
}

void TransferContext::TakeBuffer(const std::string& owner, size_t bytes,
                                 std::function<void(ChunkBuffer)> then) {
  const std::lock_guard lock(mutex_);
  auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.owner == owner; });
  if (queue == queues_.end()) queue = queues_.insert(queues_.end(), Queue{owner, {}});
  queue->waiting.push_back({bytes, std::move(then)});
  HandOut();
}

// Who needs the lock does not wait for memory to be given back.
void TransferContext::GiveBuffer(ChunkBuffer buffer) {
  const std::lock_guard lock(mutex_);
  // The store may still be sending it: then another one takes its place, and this one goes when the store lets it. And after a
  // trial with more the rest goes.
  if (buffer && buffer->Idle() && lent_ <= depth_.now()) free_.push_back(std::move(buffer));
  --lent_;
  HandOut();
}

void TransferContext::HandOut() {
  while (!queues_.empty() && lent_ < depth_.now()) {
    ChunkBuffer buffer;
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
    ++lent_;
    Queue turn = std::move(queues_.front());
    queues_.pop_front();
    // The pool does it in this order.
    Hand(std::move(buffer), std::move(turn.waiting.front()));
    turn.waiting.pop_front();
    if (!turn.waiting.empty()) queues_.push_back(std::move(turn));
  }
}

void TransferContext::Hand(ChunkBuffer buffer, Waiting to) {
  auto shared = std::make_shared<ChunkBuffer>(std::move(buffer));
  pool_.Post([this, shared, to = std::move(to)] {
    if (to.bytes > 0 && (!*shared || (*shared)->memory().size() < to.bytes))
      *shared = store_->NewBuffer(to.bytes);
    to.then(std::move(*shared));
  });
}

void TransferContext::TransferBegins() {
  const std::lock_guard lock(mutex_);
  ++transfers_;
}

void TransferContext::TransferEnds() {
  std::vector<ChunkBuffer> let_go;
  const std::lock_guard lock(mutex_);
  if (--transfers_ == 0) {
    const size_t kept = std::min(free_.size(), Within(options_.keep_bytes, options_.buffers, options_));
    std::move(free_.begin() + static_cast<ptrdiff_t>(kept), free_.end(), std::back_inserter(let_go));
    free_.resize(kept);
    codecs_.Clear();
    idle_since_ = std::chrono::steady_clock::now();
    if (!std::exchange(letting_go_, true)) pool_.PostAfter(options_.keep_for, [this] { LetGo(); });
  }
  idle_.notify_all();
}

void TransferContext::LetGo() {
  std::vector<ChunkBuffer> let_go;
  const std::lock_guard lock(mutex_);
  const auto left = idle_since_ + options_.keep_for - std::chrono::steady_clock::now();
  if (transfers_ == 0 && left.count() > 0 && !closing_) {
    return pool_.PostAfter(std::chrono::ceil<std::chrono::milliseconds>(left), [this] { LetGo(); });
  }
  letting_go_ = false;
  if (transfers_ > 0) return;
  let_go.swap(free_);
}

size_t TransferContext::Window() const {
  return std::max<size_t>(options_.window * depth_.now() / std::max<size_t>(options_.buffers, 1), 1);
}

size_t TransferContext::window() const {
  const std::lock_guard lock(mutex_);
  return Window();
}

void TransferContext::Answered(bool done) {
  const std::lock_guard lock(mutex_);
  answered_at_ = std::chrono::steady_clock::now();
  if (!done) return;
  depth_.Ended(answered_at_, !queues_.empty() || lent_ >= Window());
  HandOut();
}

void TransferContext::Carried(uint64_t bytes, std::chrono::nanoseconds took) {
  const std::lock_guard lock(mutex_);
  ++use_.operations;
  use_.took += took;
  use_.bytes += bytes;
}

StoreUse TransferContext::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

std::chrono::steady_clock::time_point TransferContext::answered_at() const {
  const std::lock_guard lock(mutex_);
  return answered_at_;
}

bool TransferContext::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

Transfer::Transfer(TransferContext& context, std::string owner, uint64_t bytes, uint64_t chunk_bytes,
                   size_t buffer_bytes, OnDelay on_delay)
    : context_(context),
      owner_(std::move(owner)),
      bytes_(bytes),
      chunk_bytes_(chunk_bytes),
      buffer_bytes_(buffer_bytes),
      chunk_count_(static_cast<size_t>(bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0))),
      on_delay_(std::move(on_delay)) {}

void Transfer::Start() {
  context_.TransferBegins();
  if (on_delay_) WatchForSilence();
  if (chunk_count_ > 0) return Launch();
  context_.pool().Post([self = shared_from_this()] { self->EndIfOver(); });
}

void Transfer::Cancel(Error why) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || cancelled_) return;
    cancelled_ = true;
    result_ = std::move(why);
  }
  context_.pool().Post([self = shared_from_this()] { self->EndIfOver(); });
}

void Transfer::GiveUpWith(Error why) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || cancelled_ || failed_chunk_) return;
    given_up_ = true;
    failed_chunk_ = 0;  // no chunk's error comes before this one
    result_ = std::move(why);
  }
  context_.pool().Post([self = shared_from_this()] { self->EndIfOver(); });
}

void Transfer::Launch() {
  std::vector<Again> now;
  {
    const size_t window = context_.window();
    const std::lock_guard lock(mutex_);
    if (failed_chunk_ || cancelled_ || pausing_) return;
    if (under_way_ == 0) asking_since_ = Clock::now();
    while (under_way_ < window && (!again_.empty() || next_ < chunk_count_)) {
      if (again_.empty()) {
        now.push_back({next_++, 0});
      } else {
        now.push_back(again_.front());
        again_.pop_front();
      }
      ++under_way_;
    }
  }
  for (const Again& what : now) {
    auto chunk = std::make_shared<Chunk>();
    chunk->index = what.index;
    chunk->attempts = what.attempts;
    chunk->bytes = static_cast<size_t>(std::min(chunk_bytes_, bytes_ - what.index * chunk_bytes_));
    context_.TakeBuffer(owner_, buffer_bytes_, [self = shared_from_this(), chunk](ChunkBuffer buffer) {
      chunk->buffer = std::move(buffer);
      self->TryOnce(chunk);
    });
  }
}

void Transfer::TryOnce(const SharedChunk& chunk) {
  if (!Enter()) return ChunkEnded(chunk, {});
  const Result<Next> next = Prepare(*chunk);
  const bool attempt = next && *next == Next::kAttempt;
  if (attempt) {
    ++chunk->attempts;
    Attempt(*chunk, [self = shared_from_this(), chunk](const Status& status) {
      self->context_.pool().Post([self, chunk, status] { self->AttemptEnded(chunk, status); });
    });
  }
  Leave();
  if (!attempt) ChunkEnded(chunk, next ? Status() : Status(next.error()));
}

std::function<void(Status)> Transfer::Counted(uint64_t bytes, std::function<void(Status)> done) {
  return
      [this, self = shared_from_this(), bytes, done = std::move(done), began = Clock::now()](Status status) {
        if (status) context_.Carried(bytes, Clock::now() - began);
        done(std::move(status));
      };
}

void Transfer::AttemptEnded(const SharedChunk& chunk, const Status& status) {
  if (status || status.error().code != Errc::kUnavailable) context_.Answered(static_cast<bool>(status));
  if (!status) {
    if (!PutOff(chunk, status.error())) ChunkEnded(chunk, status);
    return;
  }
  TellDelay({});
  if (!Enter()) return ChunkEnded(chunk, {});
  const Status completed = Complete(*chunk);
  Leave();
  ChunkEnded(chunk, completed);
}

void Transfer::ChunkEnded(const SharedChunk& chunk, const Status& status) {
  context_.GiveBuffer(std::move(chunk->buffer));
  {
    const std::lock_guard lock(mutex_);
    if (status) pauses_ = 0;
    if (!status && !cancelled_ && (!failed_chunk_ || chunk->index < *failed_chunk_)) {
      failed_chunk_ = chunk->index;
      result_ = status;
    }
    --under_way_;
  }
  Launch();
  EndIfOver();
}

// False when the error is the end.
bool Transfer::PutOff(const SharedChunk& chunk, const Error& error) {
  const EngineOptions& options = context_.options();
  const bool may_pass = error.code == Errc::kUnavailable || (on_delay_ && error.code == Errc::kExhausted);
  if (!may_pass || context_.closing()) return false;
  if (!on_delay_ && (chunk->attempts >= options.attempts || Clock::now() - begun_ >= options.retry_for))
    return false;
  TellDelay(error);
  context_.GiveBuffer(std::move(chunk->buffer));
  std::optional<Clock::duration> pause;
  {
    const std::lock_guard lock(mutex_);
    again_.push_back({chunk->index, chunk->attempts});
    --under_way_;
    if (!std::exchange(pausing_, true)) {
      pause =
          std::min<Clock::duration>(options.first_pause * (1 << std::min(pauses_, 8)), options.longest_pause);
      ++pauses_;
    }
  }
  if (pause) {
    context_.pool().PostAfter(std::chrono::ceil<std::chrono::milliseconds>(*pause),
                              [self = shared_from_this()] { self->Resume(); });
  }
  EndIfOver();
  return true;
}

void Transfer::Resume() {
  {
    const std::lock_guard lock(mutex_);
    pausing_ = false;
    if (finished_) return;
  }
  Launch();
}

// A store that has too few OSDs lets an operation wait for its timeout, which is long.
void Transfer::WatchForSilence() {
  const auto silence = context_.options().silence;
  const Clock::time_point answered = context_.answered_at();
  bool silent = false;
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    silent = under_way_ > 0 && Clock::now() - std::max(asking_since_, answered) > silence;
  }
  if (silent) {
    TellDelay(Error{Errc::kUnavailable,
                    context_.store().Describe() + " has not answered for " +
                        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(silence).count()) +
                        " s (are enough OSDs up? see ceph -s)"});
  }
  context_.pool().PostAfter(silence / 5, [self = shared_from_this()] { self->WatchForSilence(); });
}

// Once for each kind of trouble, and once when it is over.
void Transfer::TellDelay(const Status& status) {
  if (!on_delay_) return;
  const std::lock_guard lock(telling_);
  const std::optional<Errc> kind = status ? std::nullopt : std::optional(status.error().code);
  if (std::exchange(told_, kind) != kind) on_delay_(status);
}

// Whether the chunk may be worked on: then nothing is told to be over until Leave.
bool Transfer::Enter() {
  const std::lock_guard lock(mutex_);
  if (finished_ || cancelled_ || given_up_) return false;
  ++inside_;
  return true;
}

void Transfer::Leave() {
  {
    const std::lock_guard lock(mutex_);
    --inside_;
    if (!cancelled_) return;
  }
  EndIfOver();
}

void Transfer::EndIfOver() {
  Status result;
  bool finish = false;
  {
    const std::lock_guard lock(mutex_);
    const bool all = next_ == chunk_count_ && again_.empty();
    const bool over = cancelled_ ? inside_ == 0 : under_way_ == 0 && (failed_chunk_ || all);
    if (over && !finished_) {
      finished_ = finish = true;
      result = result_;
    }
  }
  if (finish) Finish(result);
  {
    const std::lock_guard lock(mutex_);
    if (finish) told_over_ = true;
    // What a cancelled one has under way may take the store's timeout.
    if (!told_over_ || under_way_ > 0 || std::exchange(ended_, true)) return;
  }
  context_.TransferEnds();
}

}  // namespace muster
