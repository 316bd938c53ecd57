#include "ceph/engine/write_transfer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/crash_point.h"
#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "ceph/engine/encoding_choice.h"

namespace muster {
namespace {

constexpr size_t kLeastCompressed = 4096;

class WriteTransfer final : public Transfer, public ShardWrite {
 public:
  WriteTransfer(TransferContext& context, std::string space, Shard shard,
                std::shared_ptr<const StagedView> memory, ShardBase base, OnDelay on_delay,
                std::function<void(Result<Shard>)> done)
      : Transfer(context, OwnerOf(space, shard), shard.bytes, shard.chunk_bytes,
                 static_cast<size_t>(shard.chunk_bytes), std::move(on_delay)),
        space_(std::move(space)),
        shard_(std::move(shard)),
        memory_(std::move(memory)),
        base_(std::move(base)),
        done_(std::move(done)) {
    shard_.chunks.resize(chunk_count());
    shared_.resize(chunk_count());
    shard_.encodings.resize(chunk_count());
    if (base_.shard && base_.shard->chunk_bytes != shard_.chunk_bytes) base_.shard.reset();
  }

  void Stop(Error why) override { Cancel(std::move(why)); }
  void GiveUp(Error why) override { GiveUpWith(std::move(why)); }

 private:
  Result<Next> Prepare(Chunk& chunk) override {
    const uint64_t begin = chunk.index * chunk_bytes();
    Digest& digest = shard_.chunks[chunk.index];
    // What did not change last time is not likely to have changed now, and needs no copy then.
    if (DidNotChange(chunk) && !memory_->mapped().empty()) {
      digest = DigestOf(memory_->mapped().subspan(begin, chunk.bytes));
      if (IsInBase(chunk)) return Shared(chunk);
    }
    const std::span<std::byte> data = chunk.buffer->memory().first(chunk.bytes);
    Digester digester;
    for (size_t at = 0; at < data.size(); at += kStagedPiece) {
      const auto piece = data.subspan(at, std::min(kStagedPiece, data.size() - at));
      if (Status status = memory_->Read(begin + at, piece); !status) return status.error();
      digester.Add(piece);
    }
    digest = digester.Get();
    if (IsInBase(chunk)) return Shared(chunk);
    if (context().options().compress) Compress(chunk, data);
    return Next::kAttempt;
  }

  void Attempt(Chunk& chunk, std::function<void(Status)> done) override {
    const size_t bytes = static_cast<size_t>(shard_.StoredBytesOf(chunk.index));
    context().store().WriteAsync({space_, ChunkName(shard_.prefix, chunk.index)}, *chunk.buffer, bytes,
                                 Counted(bytes, std::move(done)));
  }

  Status Complete(Chunk& /*chunk*/) override {
    CrashPoint("engine.chunk_written");
    return {};
  }

  void Finish(Status status) override {
    memory_.reset();
    const auto done = std::move(done_);
    if (!status) return done(status.error());
    for (size_t i = 0; i < shared_.size(); ++i) {
      if (shared_[i] == 0) continue;
      shard_.AddElsewhere(i, base_.shard->PrefixOf(i));
      shard_.encodings[i] = base_.shard->EncodingOf(i);
    }
    const auto plain = [](const ChunkEncoding& encoding) { return encoding.width == 0; };
    if (std::all_of(shard_.encodings.begin(), shard_.encodings.end(), plain)) shard_.encodings.clear();
    CrashPoint("engine.shard_written");
    done(std::move(shard_));
  }

  void Compress(const Chunk& chunk, std::span<std::byte> data) {
    // Nor does the end of a shard tell anything of the rest.
    if (data.size() < kLeastCompressed) return;
    ChunkEncoding& encoding = shard_.encodings[chunk.index];
    CodecPool::Lease codec(context().codecs());
    // An attempt whose outcome is unknown may have been carried out: a further one writes the same.
    if (chunk.attempts > 0) {
      if (encoding.width != 0) encoding = codec->Encode(data, encoding.width);
      return;
    }
    const uint32_t before = base_.shard ? base_.shard->EncodingOf(chunk.index).width : 0;
    const uint32_t width =
        choice_.Choose(before, [&](uint32_t candidate) { return codec->Sample(data, candidate); });
    if (width == 0) return;
    encoding = codec->Encode(data, width);
    if (encoding.width == 0) choice_.DidNotPay();
  }

  // Whether the base may share this chunk.
  [[nodiscard]] bool BaseHas(const Chunk& chunk) const {
    const Shard* base = base_.shard.get();
    return base != nullptr && chunk.index < base->chunks.size() &&
           base->BytesOf(chunk.index) == chunk.bytes && (chunk.index + base_.turn) % kRewriteEvery != 0;
  }
  [[nodiscard]] bool DidNotChange(const Chunk& chunk) const {
    return BaseHas(chunk) && base_.shard->PrefixOf(chunk.index) != base_.shard->prefix;
  }
  [[nodiscard]] bool IsInBase(const Chunk& chunk) const {
    return BaseHas(chunk) && base_.shard->chunks[chunk.index] == shard_.chunks[chunk.index];
  }
  Next Shared(const Chunk& chunk) {
    shared_[chunk.index] = 1;
    return Next::kNothing;
  }

  const std::string space_;
  Shard shard_;
  std::shared_ptr<const StagedView> memory_;
  ShardBase base_;
  EncodingChoice choice_;
  std::vector<char> shared_;  // of each chunk, whether it is in the base; threads write different ones
  std::function<void(Result<Shard>)> done_;
};

}  // namespace

std::shared_ptr<ShardWrite> StartWrite(TransferContext& context, std::string space, Shard shard,
                                       std::shared_ptr<const StagedView> memory, ShardBase base,
                                       OnDelay on_delay, std::function<void(Result<Shard>)> done) {
  auto write = std::make_shared<WriteTransfer>(context, std::move(space), std::move(shard), std::move(memory),
                                               std::move(base), std::move(on_delay), std::move(done));
  write->Start();
  return write;
}

}  // namespace muster
