#include "daemon/partner/copy_io.h"

#include <algorithm>

#include "ceph/catalog/digest.h"

namespace muster {
namespace {

// Digested and stored while it is still in the processor's cache.

}  // namespace

Result<std::vector<uint64_t>> ChunksOf(const v1::ChunksWanted& wanted, const Shard& shard) {
  const Error bad{Errc::kInvalid, "a partner node names chunks that the shard does not have"};
  std::vector<uint64_t> chunks;
  if (wanted.runs_size() % 2 != 0) return bad;
  uint64_t next = 0;
  for (int i = 0; i < wanted.runs_size(); i += 2) {
    const uint64_t first = wanted.runs(i);
    const uint64_t count = wanted.runs(i + 1);
    if (first < next || first > shard.chunks.size() || count > shard.chunks.size() - first) return bad;
    for (uint64_t chunk = first; chunk < first + count; ++chunk) chunks.push_back(chunk);
    next = first + count;
  }
  return chunks;
}

v1::ChunksWanted WantedMessage(const std::vector<uint64_t>& runs) {
  v1::ChunksWanted wanted;
  wanted.mutable_runs()->Add(runs.begin(), runs.end());
  return wanted;
}

Status ReceivePieces(PartnerStream& stream, uint64_t bytes, const StorePiece& store) {
  thread_local std::vector<std::byte> buffer;
  buffer.resize(kPiece);
  stream.SetDeadline(kChunkTime);
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min<uint64_t>(kPiece, bytes - at)));
    if (Status got = stream.ReceiveBytes(piece); !got) return got;
    if (Status stored = store(at, piece); !stored) return stored;
  }
  return {};
}

Result<bool> ReceiveChunk(PartnerStream& stream, const Shard& shard, uint64_t chunk,
                          const StorePiece& store) {
  Digester digester;
  const Status received = ReceivePieces(stream, shard.BytesOf(chunk), [&](uint64_t offset, auto piece) {
    digester.Add(piece);
    return store(offset, piece);
  });
  if (!received) return received.error();
  return digester.Get() == shard.chunks[chunk];
}

}  // namespace muster
