#include "ceph/engine/engine.h"

#include <algorithm>
#include <future>
#include <utility>

#include "ceph/engine/check_transfer.h"
#include "ceph/engine/read_transfer.h"
#include "ceph/engine/shard_memory.h"
#include "ceph/engine/write_transfer.h"

namespace muster {
namespace {

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
  Impl(std::shared_ptr<Store> store, const EngineOptions& options)
      : writes_(store, options, "muster-write", options.write_niceness),
        reads_(std::move(store), options, "muster-read", 0) {}
  ~Impl() {
    writes_.Close();
    reads_.Close();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] StoreUse writes() const { return writes_.use(); }
  [[nodiscard]] StoreUse reads() const { return reads_.use(); }

  std::shared_ptr<ShardWrite> Write(const std::string& space, Shard shard, StagedMemory& memory,
                                    ShardBase base, OnDelay on_delay,
                                    std::function<void(Result<Shard>)> done) {
    shard.chunk_bytes = std::max<uint64_t>(writes_.options().chunk_bytes, 1);
    auto view = memory.View(shard.bytes);
    if (!view) {
      Later([done = std::move(done), error = view.error()] { done(error); });
      return nullptr;
    }
    return StartWrite(writes_, space, std::move(shard), *std::move(view), std::move(base),
                      std::move(on_delay), std::move(done));
  }

  void Read(const std::string& space, const Shard& shard, uint64_t offset, uint64_t bytes, bool keep,
            std::function<void(Result<UniqueFd>)> done, const Reader& reader = std::nullopt) {
    Result<UniqueFd> memory = UniqueFd();
    if (Status status = CheckShard(shard); !status) {
      memory = status.error();
    } else if (offset > shard.bytes || bytes > shard.bytes - offset) {
      memory = Error{Errc::kInvalid, "shard " + shard.prefix + " has " + std::to_string(shard.bytes) +
                                         " bytes, not " + std::to_string(bytes) + " from " +
                                         std::to_string(offset) + " on"};
    } else if (keep) {
      memory = MakeShardMemory(bytes);
    }
    if (!memory) {
      return Later([done = std::move(done), error = memory.error()] { done(error); });
    }
    MakeReadTransfer(reads_, space, shard, offset, offset + bytes, std::move(*memory), {}, std::move(done),
                     reader)
        ->Start();
  }

  void ReadMissing(const std::string& space, const Shard& shard, UniqueFd memory, std::vector<bool> have,
                   std::function<void(Result<UniqueFd>)> done) {
    Status status = CheckShard(shard);
    if (status && have.size() != shard.chunks.size())
      status = Error{Errc::kInvalid, "shard " + shard.prefix + " has not one flag for each chunk"};
    if (!status) return Later([done = std::move(done), error = status.error()] { done(error); });
    MakeReadTransfer(reads_, space, shard, 0, shard.bytes, std::move(memory), std::move(have),
                     std::move(done))
        ->Start();
  }

  // To seal and to map much memory takes long.
  void Check(const Shard& shard, StagedMemory& memory, std::function<void(Status)> done) {
    Later([this, shard, &memory, done = std::move(done)] {
      Status status = CheckShard(shard);
      if (status) status = memory.Seal();
      auto view = status ? memory.View(shard.bytes) : status.error();
      if (!view) return done(view.error());
      MakeCheckTransfer(reads_, shard, *std::move(view), done)->Start();
    });
  }

 private:
  // Callbacks come on an engine thread, also when there is nothing to do.
  void Later(WorkerPool::Task task) {
    reads_.TransferBegins();
    reads_.pool().Post([this, task = std::move(task)] {
      task();
      reads_.TransferEnds();
    });
  }

  TransferContext writes_;
  TransferContext reads_;
};

Engine::Engine(std::shared_ptr<Store> store, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(store), options)) {}

Engine::~Engine() = default;

std::shared_ptr<ShardWrite> Engine::WriteShard(const std::string& space, const std::string& prefix,
                                               uint32_t rank, StagedMemory& memory, uint64_t bytes,
                                               ShardBase base, std::function<void(Result<Shard>)> done,
                                               OnDelay on_delay) {
  Shard shard;
  shard.rank = rank;
  shard.bytes = bytes;
  shard.prefix = prefix;
  return impl_->Write(space, std::move(shard), memory, std::move(base), std::move(on_delay), std::move(done));
}

void Engine::CheckStaged(const Shard& shard, StagedMemory& memory, std::function<void(Status)> done) {
  impl_->Check(shard, memory, std::move(done));
}

void Engine::ReadShard(const std::string& space, const Shard& shard,
                       std::function<void(Result<UniqueFd>)> done, const Reader& reader) {
  impl_->Read(space, shard, 0, shard.bytes, true, std::move(done), reader);
}

void Engine::ReadRange(const std::string& space, const Shard& shard, uint64_t offset, uint64_t bytes,
                       std::function<void(Result<UniqueFd>)> done) {
  impl_->Read(space, shard, offset, bytes, true, std::move(done));
}

void Engine::ReadMissing(const std::string& space, const Shard& shard, UniqueFd memory,
                         std::vector<bool> have, std::function<void(Result<UniqueFd>)> done) {
  impl_->ReadMissing(space, shard, std::move(memory), std::move(have), std::move(done));
}

void Engine::VerifyShard(const std::string& space, const Shard& shard, std::function<void(Status)> done) {
  impl_->Read(space, shard, 0, shard.bytes, false, [done = std::move(done)](const Result<UniqueFd>& result) {
    done(result ? Status() : Status(result.error()));
  });
}

StoreUse Engine::writes() const {
  return impl_->writes();
}

StoreUse Engine::reads() const {
  return impl_->reads();
}

Status Engine::Verify(const std::string& space, const Manifest& manifest) {
  for (const Shard& shard : manifest.shards) {
    // Shared: set_value may still be at work when get returns.
    const auto promise = std::make_shared<std::promise<Status>>();
    VerifyShard(space, shard, [promise](Status status) { promise->set_value(std::move(status)); });
    if (Status status = promise->get_future().get(); !status) return status;
  }
  return {};
}

}  // namespace muster
