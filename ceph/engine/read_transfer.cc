#include "ceph/engine/read_transfer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/crash_point.h"
#include "ceph/catalog/digest.h"
#include "ceph/engine/shard_memory.h"

namespace muster {
namespace {

// A part of a shard, and the whole chunks that have it.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t first_chunk = 0;
  uint64_t chunks_begin = 0;
  uint64_t chunks_end = 0;

  // `begin` <= `end` <= shard.bytes.
  Range(const Shard& shard, uint64_t from, uint64_t to)
      : begin(from), end(to), first_chunk(static_cast<size_t>(from / shard.chunk_bytes)) {
    if (begin == end) return;
    const uint64_t last_chunk = (end - 1) / shard.chunk_bytes;
    chunks_begin = first_chunk * shard.chunk_bytes;
    chunks_end = shard.bytes - last_chunk * shard.chunk_bytes > shard.chunk_bytes
                     ? (last_chunk + 1) * shard.chunk_bytes
                     : shard.bytes;
  }
};

// Reads and verifies; keeps the bytes of the range only when there is memory to keep them in.
class ReadTransfer final : public Transfer {
 public:
  ReadTransfer(TransferContext& context, std::string space, Shard shard, const Range& range, UniqueFd memory,
               std::vector<bool> have, std::function<void(Result<UniqueFd>)> done, Reader reader)
      : Transfer(context, OwnerOf(space, shard), range.chunks_end - range.chunks_begin, shard.chunk_bytes, 0),
        space_(std::move(space)),
        shard_(std::move(shard)),
        range_(range),
        have_(std::move(have)),
        got_(chunk_count()),
        memory_(std::move(memory)),
        done_(std::move(done)),
        reader_(std::move(reader)) {}

 private:
  Result<Next> Prepare(Chunk& chunk) override {
    if (reader_ && reader_->expired()) return Error{Errc::kConflict, "nobody waits for the shard any more"};
    return chunk.index < have_.size() && have_[chunk.index] ? Next::kNothing : Next::kAttempt;
  }

  void Attempt(Chunk& chunk, std::function<void(Status)> done) override {
    const size_t index = chunk.index;
    // One byte more: to see that an object is too long.
    context().store().ReadAsync({space_, Name(index)}, StoredBytes(chunk) + 1,
                                [this, self = shared_from_this(), index,
                                 done = Counted(StoredBytes(chunk), std::move(done))](Result<StoreData> got) {
                                  if (!got) return done(got.error());
                                  got_[index] = *std::move(got);
                                  done({});
                                });
  }

  Status Complete(Chunk& chunk) override {
    CrashPoint("engine.chunk_read");
    const StoreData read = std::exchange(got_[chunk.index], {});
    const size_t size = read.bytes.size();
    const size_t stored = StoredBytes(chunk);
    if (size < stored) return Bad(chunk.index, "is cut off: " + Sizes(size, stored));
    if (size > stored) return Bad(chunk.index, "is too long: " + Sizes(size, stored));
    const uint32_t width = shard_.EncodingOf(range_.first_chunk + chunk.index).width;
    if (width == 0) return Take(chunk, read.bytes);
    CodecPool::Lease codec(context().codecs());
    const auto plain = codec->Decode(read.bytes, width, chunk.bytes);
    return plain ? Take(chunk, *plain) : Bad(chunk.index, plain.error().message);
  }

  Status Take(const Chunk& chunk, std::span<const std::byte> data) {
    const Digest digest = DigestOf(data);
    const Digest& expected = shard_.chunks[range_.first_chunk + chunk.index];
    if (digest != expected) {
      return Bad(chunk.index, "has digest " + ToHex(digest) + ", not " + ToHex(expected));
    }
    if (!memory_.valid()) return {};
    const uint64_t at = range_.chunks_begin + chunk.index * chunk_bytes();
    const uint64_t from = std::max(at, range_.begin);
    const uint64_t to = std::min(at + data.size(), range_.end);
    PrepareShardMemory(memory_, from - range_.begin, static_cast<size_t>(to - from));
    return WriteShardMemory(memory_, from - range_.begin, data.subspan(from - at, to - from));
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

  [[nodiscard]] size_t StoredBytes(const Chunk& chunk) const {
    return static_cast<size_t>(shard_.StoredBytesOf(range_.first_chunk + chunk.index));
  }

  // `chunk` counts from the range's first.
  [[nodiscard]] std::string Name(size_t chunk) const { return shard_.ObjectOf(range_.first_chunk + chunk); }

  static std::string Sizes(size_t got, size_t want) {
    return (got > want ? "more than " + std::to_string(want) : std::to_string(got)) + " bytes, not " +
           std::to_string(want);
  }

  [[nodiscard]] Error Bad(size_t chunk, const std::string& what) {
    return {Errc::kCorrupt, "object " + context().store().Where({space_, Name(chunk)}) + " " + what};
  }

  const std::string space_;
  const Shard shard_;
  const Range range_;
  const std::vector<bool> have_;
  std::vector<StoreData> got_;  // of each chunk; a chunk has one operation at a time
  UniqueFd memory_;
  std::function<void(Result<UniqueFd>)> done_;
  const Reader reader_;
};

}  // namespace

std::shared_ptr<Transfer> MakeReadTransfer(TransferContext& context, std::string space, const Shard& shard,
                                           uint64_t begin, uint64_t end, UniqueFd memory,
                                           std::vector<bool> have, std::function<void(Result<UniqueFd>)> done,
                                           const Reader& reader) {
  return std::make_shared<ReadTransfer>(context, std::move(space), shard, Range(shard, begin, end),
                                        std::move(memory), std::move(have), std::move(done), reader);
}

}  // namespace muster
