#include "daemon/partner/copy_fetch.h"

#include <fmt/format.h>

#include <utility>

#include "ceph/engine/shard_memory.h"
#include "daemon/partner/copy_io.h"
#include "daemon/partner/stream.h"
#include "daemon/proto/shard_message.h"

namespace muster {
namespace {

using Clock = PartnerStream::Clock;

constexpr auto kAnswer = std::chrono::milliseconds(3'000);
// The store is the better source of what a partner would still take long for.
constexpr auto kTrial = std::chrono::seconds(5);
constexpr uint64_t kLeastBytesPerSecond = 8 << 20;

bool TooSlow(Clock::time_point begun, uint64_t bytes) {
  const auto taken = Clock::now() - begun;
  const auto seconds = std::chrono::duration<double>(taken).count();
  return taken > kTrial && static_cast<double>(bytes) < seconds * kLeastBytesPerSecond;
}

Result<std::vector<uint64_t>> Found(const v1::CopyFound& found, const CopyName& name, uint64_t max_bytes,
                                    Shard* shard) {
  *shard = TakeShard(found.shard());
  if (Status good = CheckShardNumbers(*shard, max_bytes); !good) return good.error();
  if (shard->rank != name.rank) return Error{Errc::kInvalid, "it has another rank's shard"};
  v1::ChunksWanted all;
  *all.mutable_runs() = found.present();
  return ChunksOf(all, *shard);
}

// What ends it is no error: some of it may be there.
Status Fill(PartnerStream& stream, const std::vector<uint64_t>& chunks, const Cancel& cancel,
            FetchedCopy* copy) {
  const auto begun = Clock::now();
  Status result;
  for (const uint64_t chunk : chunks) {
    if (cancel.now()) return Error{Errc::kUnavailable, "it is not wanted any more"};
    if (TooSlow(begun, copy->bytes)) return Error{Errc::kUnavailable, "it is slow"};
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

Result<FetchedCopy> FetchCopy(const std::string& partner, uint16_t port, const CopyName& name,
                              uint64_t max_shard_bytes, std::shared_ptr<const Cancel> cancel) {
  auto stream = PartnerStream::Connect(partner, port, Urgency::kNow, cancel);
  if (!stream) return stream.error();
  v1::PartnerMessage message;
  v1::CopyRequest* request = message.mutable_request();
  request->set_gang(name.gang);
  request->set_generation(name.generation);
  request->set_step(name.step);
  request->set_rank(name.rank);
  if (Status sent = (*stream)->Send(message); !sent) return sent.error();
  const auto answer = (*stream)->Receive(kAnswer);
  if (!answer) return answer.error();
  if (!answer->has_found()) return Error{Errc::kInvalid, "it has not said what it has"};
  FetchedCopy copy;
  const auto chunks = Found(answer->found(), name, max_shard_bytes, &copy.shard);
  if (!chunks) return chunks.error();
  auto memory = MakeShardMemory(copy.shard.bytes);
  if (!memory) return memory.error();
  copy.memory = *std::move(memory);
  copy.have.resize(copy.shard.chunks.size());
  v1::PartnerMessage wanted;
  *wanted.mutable_wanted()->mutable_runs() = answer->found().present();
  if (Status sent = (*stream)->Send(wanted); !sent) return sent.error();
  Status filled = Fill(**stream, *chunks, *cancel, &copy);
  if (copy.bytes == 0) {
    return filled ? Error{Errc::kNotFound, "it has nothing of it yet"} : filled.error();
  }
  if (filled && copy.Whole()) filled = SealShardMemory(copy.memory);
  if (!filled) copy.problem = filled.error().message;
  if (copy.problem.empty() && !copy.Whole()) copy.problem = "it has not all of it";
  return copy;
}

}  // namespace muster
