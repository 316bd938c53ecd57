#include "daemon/partner/copy_fetch.h"

#include <fmt/format.h>

#include <utility>

#include "ceph/engine/shard_memory.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/copy_source.h"
#include "daemon/partner/stream.h"

namespace muster {
namespace {

// The store is the better source of what a partner would still take long for.
constexpr auto kTrial = std::chrono::seconds(5);
constexpr uint64_t kLeastBytesPerSecond = 8 << 20;

// What ends it is no error: some of it may be there.
Status Fill(PartnerStream& stream, const std::vector<uint64_t>& chunks, const Cancel& cancel,
            FetchedCopy* copy) {
  const auto begun = FetchClock::now();
  Status result;
  for (const uint64_t chunk : chunks) {
    if (Status wanted = cancel.Check(); !wanted) return wanted;
    if (FetchTooSlow(begun, copy->bytes)) return Error{Errc::kUnavailable, "it is slow"};
    const uint64_t at = chunk * copy->shard.chunk_bytes;
    PrepareShardMemory(copy->memory, at, static_cast<size_t>(copy->shard.BytesOf(chunk)));
    const auto good =
        ReceiveChunk(stream, copy->shard, chunk, [&](uint64_t offset, std::span<const std::byte> piece) {
          return WriteShardMemory(copy->memory, at + offset, piece);
        });
    if (!good) return good.error();
    if (!*good) {
      result = Error{Errc::kCorrupt, fmt::format("chunk {} is damaged there", chunk)};
      continue;
    }
    copy->have[chunk] = true;
    copy->bytes += copy->shard.BytesOf(chunk);
  }
  return result;
}

}  // namespace

bool FetchTooSlow(FetchClock::time_point begun, uint64_t bytes) {
  const auto taken = FetchClock::now() - begun;
  const auto seconds = std::chrono::duration<double>(taken).count();
  return taken > kTrial && static_cast<double>(bytes) < seconds * kLeastBytesPerSecond;
}

Result<FetchedCopy> Finished(FetchedCopy copy, Status filled) {
  if (copy.bytes == 0) {
    return filled ? Error{Errc::kNotFound, "it has nothing of it yet"} : filled.error();
  }
  if (filled && copy.Whole()) filled = SealShardMemory(copy.memory);
  if (!filled) copy.problem = filled.error().message;
  if (copy.problem.empty() && !copy.Whole()) copy.problem = "it has not all of it";
  return copy;
}

Result<FetchedCopy> FetchCopy(const std::string& partner, uint16_t port, const CopyName& name,
                              uint64_t max_shard_bytes, std::shared_ptr<const Cancel> cancel) {
  auto source = OpenSource(partner, port, Urgency::kNow, name, max_shard_bytes, cancel);
  if (!source) return source.error();
  if (!source->with.empty()) return Error{Errc::kInvalid, "it keeps parity, not a copy (partner_group)"};
  const auto chunks = ChunksOf(WantedMessage(source->present), source->shard);
  if (!chunks) return chunks.error();
  FetchedCopy copy;
  copy.shard = std::move(source->shard);
  auto memory = MakeShardMemory(copy.shard.bytes);
  if (!memory) return memory.error();
  copy.memory = *std::move(memory);
  copy.have.resize(copy.shard.chunks.size());
  if (Status sent = source->Want(source->present); !sent) return sent.error();
  Status filled = Fill(*source->stream, *chunks, *cancel, &copy);
  return Finished(std::move(copy), std::move(filled));
}

}  // namespace muster
