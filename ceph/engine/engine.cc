#include "ceph/engine/engine.h"

#include <future>
#include <utility>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "ceph/engine/shard_memory.h"
#include "ceph/engine/transfer.h"
#include "daemon/base/crash_point.h"

namespace muster {
namespace {

class WriteTransfer final : public Transfer {
 public:
  WriteTransfer(TransferContext& context, std::string space, Shard shard, UniqueFd memory,
                std::function<void(Result<Shard>)> done)
      : Transfer(context, shard.bytes, shard.chunk_bytes),
        space_(std::move(space)),
        shard_(std::move(shard)),
        memory_(std::move(memory)),
        done_(std::move(done)) {
    shard_.chunks.resize(chunk_count());
  }

 private:
  Status Prepare(Chunk& chunk) override {
    const std::span<std::byte> data(chunk.buffer.data.get(), chunk.bytes);
    if (Status status = ReadStagedMemory(memory_, chunk.index * chunk_bytes(), data); !status) return status;
    shard_.chunks[chunk.index] = DigestOf(data);
    return {};
  }

  void Attempt(Chunk& chunk, std::function<void(Status)> done) override {
    context().store().WriteAsync({space_, ChunkName(shard_.prefix, chunk.index)},
                                 std::span<const std::byte>(chunk.buffer.data.get(), chunk.bytes),
                                 std::move(done));
  }

  Status Complete(Chunk& /*chunk*/) override {
    CrashPoint("engine.chunk_written");
    return {};
  }

  void Finish(Status status) override {
    memory_.reset();
    const auto done = std::move(done_);
    if (!status) return done(status.error());
    CrashPoint("engine.shard_written");
    done(std::move(shard_));
  }

  const std::string space_;
  Shard shard_;
  UniqueFd memory_;
  std::function<void(Result<Shard>)> done_;
};

// Reads and verifies; keeps the bytes only when there is memory to keep them in.
class ReadTransfer final : public Transfer {
 public:
  ReadTransfer(TransferContext& context, std::string space, Shard shard, UniqueFd memory,
               std::function<void(Result<UniqueFd>)> done)
      : Transfer(context, shard.bytes, shard.chunk_bytes),
        space_(std::move(space)),
        shard_(std::move(shard)),
        got_(chunk_count()),
        memory_(std::move(memory)),
        done_(std::move(done)) {}

 private:
  Status Prepare(Chunk& /*chunk*/) override { return {}; }

  void Attempt(Chunk& chunk, std::function<void(Status)> done) override {
    const size_t index = chunk.index;
    context().store().ReadAsync(
        {space_, Name(index)}, {chunk.buffer.data.get(), chunk.bytes + 1},
        [this, self = shared_from_this(), index, done = std::move(done)](Result<size_t> got) {
          if (got) got_[index] = *got;
          done(got ? Status() : Status(got.error()));
        });
  }

  Status Complete(Chunk& chunk) override {
    CrashPoint("engine.chunk_read");
    const size_t got = got_[chunk.index];
    if (got < chunk.bytes) return Bad(chunk.index, "is cut off: " + Sizes(got, chunk.bytes));
    if (got > chunk.bytes) return Bad(chunk.index, "is too long: " + Sizes(got, chunk.bytes));
    const std::span<const std::byte> data(chunk.buffer.data.get(), chunk.bytes);
    const Digest digest = DigestOf(data);
    if (digest != shard_.chunks[chunk.index]) {
      return Bad(chunk.index, "has digest " + ToHex(digest) + ", not " + ToHex(shard_.chunks[chunk.index]));
    }
    if (!memory_.valid()) return {};
    return WriteShardMemory(memory_, chunk.index * chunk_bytes(), data);
  }

  void Finish(Status status) override {
    const auto done = std::move(done_);
    if (!status && status.error().code == Errc::kNotFound) {
      return done(Error{Errc::kCorrupt, "an object of rank " + std::to_string(shard_.rank) +
                                            "'s shard is missing: " + status.error().message});
    }
    if (!status) return done(status.error());
    if (memory_.valid()) {
      if (Status sealed = SealShardMemory(memory_); !sealed) return done(sealed.error());
    }
    done(std::move(memory_));
  }

  [[nodiscard]] std::string Name(size_t chunk) const { return ChunkName(shard_.prefix, chunk); }

  static std::string Sizes(size_t got, size_t want) {
    return (got > want ? "more than " + std::to_string(want) : std::to_string(got)) + " bytes, not " +
           std::to_string(want);
  }

  [[nodiscard]] Error Bad(size_t chunk, const std::string& what) {
    return {Errc::kCorrupt,
            "object " + space_ + "/" + Name(chunk) + " in " + context().store().Describe() + " " + what};
  }

  const std::string space_;
  const Shard shard_;
  std::vector<size_t> got_;  // bytes read of each chunk; a chunk has one operation at a time
  UniqueFd memory_;
  std::function<void(Result<UniqueFd>)> done_;
};

// A shard comes out of a decoded manifest, but a caller may have built it otherwise.
Status CheckShard(const Shard& shard) {
  const uint64_t size = shard.chunk_bytes;
  if (size == 0 || shard.bytes / size + (shard.bytes % size != 0 ? 1 : 0) != shard.chunks.size()) {
    return Error{Errc::kInvalid, "shard " + shard.prefix + " has not one digest for each chunk"};
  }
  return {};
}

}  // namespace

class Engine::Impl {
 public:
  Impl(std::shared_ptr<Store> store, const EngineOptions& options) : context_(std::move(store), options) {}

  void Write(const std::string& space, Shard shard, UniqueFd memory,
             std::function<void(Result<Shard>)> done) {
    shard.chunk_bytes = std::max<uint64_t>(context_.options().chunk_bytes, 1);
    if (Status status = CheckStagedMemory(memory, shard.bytes); !status) {
      return Later([done = std::move(done), status] { done(status.error()); });
    }
    std::make_shared<WriteTransfer>(context_, space, std::move(shard), std::move(memory), std::move(done))
        ->Start();
  }

  void Read(const std::string& space, const Shard& shard, bool keep,
            std::function<void(Result<UniqueFd>)> done) {
    Result<UniqueFd> memory = UniqueFd();
    if (Status status = CheckShard(shard); !status) {
      memory = status.error();
    } else if (keep) {
      memory = MakeShardMemory(shard.bytes);
    }
    if (!memory) {
      return Later([done = std::move(done), error = memory.error()] { done(error); });
    }
    std::make_shared<ReadTransfer>(context_, space, shard, std::move(*memory), std::move(done))->Start();
  }

 private:
  // Callbacks come on an engine thread, also when there is nothing to do.
  void Later(WorkerPool::Task task) {
    context_.TransferBegins();
    context_.pool().Post([this, task = std::move(task)] {
      task();
      context_.TransferEnds();
    });
  }

  TransferContext context_;
};

Engine::Engine(std::shared_ptr<Store> store, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(store), options)) {}

Engine::~Engine() = default;

void Engine::WriteShard(const std::string& space, const std::string& key, uint64_t step, const Fence& fence,
                        uint32_t rank, UniqueFd memory, uint64_t bytes,
                        std::function<void(Result<Shard>)> done) {
  Shard shard;
  shard.rank = rank;
  shard.bytes = bytes;
  shard.prefix = ShardPrefix(key, step, fence, rank);
  impl_->Write(space, std::move(shard), std::move(memory), std::move(done));
}

void Engine::ReadShard(const std::string& space, const Shard& shard,
                       std::function<void(Result<UniqueFd>)> done) {
  impl_->Read(space, shard, true, std::move(done));
}

Status Engine::Verify(const std::string& space, const Manifest& manifest) {
  for (const Shard& shard : manifest.shards) {
    // Shared: set_value may still be at work when get returns.
    const auto promise = std::make_shared<std::promise<Status>>();
    impl_->Read(space, shard, false, [promise](Result<UniqueFd> result) {
      promise->set_value(result ? Status() : Status(result.error()));
    });
    if (Status status = promise->get_future().get(); !status) return status;
  }
  return {};
}

}  // namespace muster
