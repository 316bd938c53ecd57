// What both ends do with the chunks of a shard on a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/manifest.h"
#include "daemon/partner/stream.h"

namespace muster {

// What a ChunksWanted names, in order. kInvalid: it is not ascending, or the shard has no such chunk.
Result<std::vector<uint64_t>> ChunksOf(const v1::ChunksWanted& wanted, const Shard& shard);
v1::ChunksWanted WantedMessage(const std::vector<uint64_t>& runs);

// What one message carries of a chunk.
inline constexpr size_t kPiece = 256 << 10;

// Gets each piece with its place in the chunk.
using StorePiece = std::function<Status(uint64_t offset, std::span<const std::byte>)>;
// Receives a chunk piece by piece, within the stream's time for one.
Status ReceivePieces(PartnerStream& stream, uint64_t bytes, const StorePiece& store);
// The same, and compares its digest: false when it holds something else.
Result<bool> ReceiveChunk(PartnerStream& stream, const Shard& shard, uint64_t chunk, const StorePiece& store);

// For one chunk, at the slowest. The least that is worth waiting for is another question, see copy_fetch.
inline constexpr std::chrono::milliseconds kChunkTime{10'000};

}  // namespace muster
