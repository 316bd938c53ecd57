#include "daemon/proto/shard_message.h"

#include <algorithm>
#include <string>

namespace muster {

void PutShard(const Shard& shard, v1::Shard* message) {
  message->set_rank(shard.rank);
  message->set_bytes(shard.bytes);
  message->set_chunk_bytes(shard.chunk_bytes);
  message->set_prefix(shard.prefix);
  for (const Digest& digest : shard.chunks) {
    message->mutable_digests()->append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  for (const ChunkRun& run : shard.elsewhere) {
    v1::ChunkRun* out = message->add_elsewhere();
    out->set_first(run.first);
    out->set_count(run.count);
    out->set_prefix(run.prefix);
  }
  for (const EncodedRun& run : shard.EncodedRuns()) {
    v1::EncodedRun* out = message->add_encoded();
    out->set_first(run.first);
    out->set_width(run.width);
    for (const uint32_t bytes : run.bytes) out->add_bytes(bytes);
  }
}

Shard TakeShard(const v1::Shard& message) {
  Shard shard;
  shard.rank = message.rank();
  shard.bytes = message.bytes();
  shard.chunk_bytes = message.chunk_bytes();
  shard.prefix = message.prefix();
  const std::string& digests = message.digests();
  for (size_t at = 0; at + sizeof(Digest) <= digests.size(); at += sizeof(Digest)) {
    Digest& digest = shard.chunks.emplace_back();
    std::copy_n(digests.begin() + static_cast<std::ptrdiff_t>(at), digest.size(), digest.begin());
  }
  for (const v1::ChunkRun& run : message.elsewhere())
    shard.elsewhere.push_back({run.first(), run.count(), run.prefix()});
  for (const v1::EncodedRun& run : message.encoded()) {
    // One that is not consistent is left out: its chunks do not verify then.
    (void)shard.AddEncoded({run.first(), run.width(), {run.bytes().begin(), run.bytes().end()}});
  }
  return shard;
}

Status CheckFits(const v1::Shard& message) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes <= kMaxShardMessage) return {};
  return Error{Errc::kExhausted,
               "the list of the shard's " + std::to_string(message.digests().size() / sizeof(Digest)) +
                   " chunks has " + std::to_string(bytes) + " bytes, more than the " +
                   std::to_string(kMaxShardMessage) +
                   " that daemons tell each other; the next save shares no chunks with older ones, and its "
                   "list is shorter (a larger chunk_size avoids this)"};
}

}  // namespace muster
