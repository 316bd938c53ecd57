#include "daemon/partner/stock.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/partner/stream.h"

namespace muster {
namespace {

Status SendMemory(PartnerStream& stream, const std::shared_ptr<const MemoryChunk>& chunk, uint64_t bytes) {
  if (chunk == nullptr || chunk->bytes() < bytes)
    return Error{Errc::kInvalid, "a chunk is wanted that is not kept here"};
  return stream.SendFile(chunk->fd(), chunk->at(), bytes);
}

Supply CopySupply(ShardCopy copy) {
  Supply supply{*copy.shard, ChunkRuns(copy.chunks, true), {}, {}};
  supply.send = [copy = std::move(copy)](PartnerStream& stream, uint64_t chunk) {
    return SendMemory(stream, copy.chunks[chunk], copy.shard->BytesOf(chunk));
  };
  return supply;
}

// Whatever the memory holds by now: who gets it compares digests.
Supply OwnSupply(OwnShards::Held own) {
  Supply supply{*own.shard, {0, own.shard->chunks.size()}, {}, {}};
  supply.send = [own = std::move(own)](PartnerStream& stream, uint64_t chunk) {
    return stream.SendFile(own.memory->fd(), chunk * own.shard->chunk_bytes, own.shard->BytesOf(chunk));
  };
  return supply;
}

Supply ParitySupply(ParityOf parity) {
  Supply supply{*parity.shard, {}, parity.with, {}};
  for (uint64_t row = 0; row < parity.part.count; ++row) {
    if (parity.rows[row]) AddToRuns(parity.part.first + row, &supply.present);
  }
  supply.send = [parity = std::move(parity)](PartnerStream& stream, uint64_t chunk) -> Status {
    if (chunk - parity.part.first >= parity.part.count)
      return Error{Errc::kInvalid, "a chunk is wanted of which no parity is kept here"};
    return SendMemory(stream, parity.rows[chunk - parity.part.first], parity.shard->BytesOf(chunk));
  };
  return supply;
}

}  // namespace

Result<Supply> PartnerStock::Find(const CopyName& name) const {
  if (ShardCopy copy = copies->Find(name); copy.shard) return CopySupply(std::move(copy));
  if (auto mine = own->Find(name)) return OwnSupply(*std::move(mine));
  if (ParityOf parts = parity->Find(name); parts.shard) return ParitySupply(std::move(parts));
  return Error{Errc::kNotFound,
               fmt::format("nothing of rank {}, step {}, is kept here", name.rank, name.step)};
}

}  // namespace muster
