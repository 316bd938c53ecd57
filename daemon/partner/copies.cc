#include "daemon/partner/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster {
namespace {

constexpr uint64_t kMaxChunk = 64 << 20;  // as chunk_size in the configuration

}  // namespace

void DropChunks(CopyChunks&& chunks, CopyChunks* dropped) {
  std::copy_if(std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()),
               std::back_inserter(*dropped), [](const auto& chunk) { return chunk != nullptr; });
  chunks.clear();
}

void AddToRuns(uint64_t chunk, std::vector<uint64_t>* runs) {
  if (!runs->empty() && (*runs)[runs->size() - 2] + runs->back() == chunk) {
    ++runs->back();
  } else {
    runs->insert(runs->end(), {chunk, 1});
  }
}

std::vector<uint64_t> ChunkRuns(const CopyChunks& chunks, bool present) {
  std::vector<uint64_t> runs;
  for (uint64_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if ((chunks[chunk] != nullptr) == present) AddToRuns(chunk, &runs);
  }
  return runs;
}

Status CheckShardNumbers(const Shard& shard, uint64_t max_bytes) {
  const uint64_t size = shard.chunk_bytes;
  if (shard.bytes == 0 || shard.bytes > max_bytes || size == 0 || size > kMaxChunk) {
    return Error{Errc::kInvalid, fmt::format("a shard of {} bytes in chunks of {} is not taken; at most {} "
                                             "bytes are, in chunks of at most {}",
                                             shard.bytes, size, max_bytes, kMaxChunk)};
  }
  if (shard.chunks.size() != shard.bytes / size + (shard.bytes % size != 0 ? 1 : 0)) {
    return Error{Errc::kInvalid, "a shard has not one digest for each chunk"};
  }
  return {};
}

PartnerCopies::PartnerCopies(std::shared_ptr<ChunkMemory> memory, uint64_t max_shard_bytes)
    : memory_(std::move(memory)), max_shard_bytes_(max_shard_bytes) {}

template <typename Which>
PartnerCopies::Dropped PartnerCopies::DropIf(Gang& gang, Which which) {
  Dropped dropped;
  for (auto at = gang.copies.begin(); at != gang.copies.end();) {
    const auto next = std::next(at);
    if (which(at->second.name)) {
      DropChunks(std::move(at->second.chunks), &dropped);
      gang.copies.erase(at);
    }
    at = next;
  }
  return dropped;
}

PartnerCopies::Dropped PartnerCopies::Begin(const std::string& gang, uint64_t generation,
                                            const std::vector<uint32_t>& ranks, uint64_t restore_generation,
                                            uint64_t restore_step) {
  const std::lock_guard lock(mutex_);
  Gang& known = gangs_[gang];
  if (generation <= known.generation) return {};
  known.generation = generation;
  known.ranks = {ranks.begin(), ranks.end()};
  return DropIf(known, [&](const CopyName& name) {
    return name.generation != restore_generation || name.step != restore_step;
  });
}

PartnerCopies::Dropped PartnerCopies::Committed(const std::string& gang, uint64_t generation) {
  const std::lock_guard lock(mutex_);
  const auto found = gangs_.find(gang);
  if (found == gangs_.end() || found->second.generation != generation) return {};
  return DropIf(found->second, [&, &known = found->second](const CopyName& name) {
    return name.generation != generation && !known.ranks.contains(name.rank);
  });
}

PartnerCopies::Dropped PartnerCopies::End(const std::string& gang) {
  const std::lock_guard lock(mutex_);
  const auto found = gangs_.find(gang);
  if (found == gangs_.end()) return {};
  Dropped dropped = DropIf(found->second, [](const CopyName&) { return true; });
  gangs_.erase(found);
  return dropped;
}

Result<PartnerCopies::Gang*> PartnerCopies::TakerOf(const CopyName& name) {
  const auto found = gangs_.find(name.gang);
  if (found == gangs_.end() || found->second.generation != name.generation) {
    return Error{Errc::kConflict,
                 fmt::format("generation {} of gang {} does not run here", name.generation, name.gang)};
  }
  if (!found->second.ranks.contains(name.rank)) {
    return Error{Errc::kDenied, fmt::format("this node is not the partner of rank {}", name.rank)};
  }
  return &found->second;
}

Status PartnerCopies::Offer(const CopyName& name, Shard shard, std::vector<uint64_t>* missing,
                            Dropped* dropped) {
  if (Status good = CheckShardNumbers(shard, max_shard_bytes_); !good) return good.error();
  if (shard.rank != name.rank) return Error{Errc::kInvalid, "the shard is another rank's"};
  const uint64_t spare = memory_->spare();
  const std::lock_guard lock(mutex_);
  const auto gang = TakerOf(name);
  if (!gang) return gang.error();
  Copy& copy = (*gang)->copies[name.rank];
  const bool same_generation = copy.name.generation == name.generation;
  if (same_generation && copy.name.step >= name.step && copy.name != name) {
    return Error{Errc::kConflict,
                 fmt::format("the copy of rank {} here is of step {}", name.rank, copy.name.step)};
  }
  CopyChunks chunks(shard.chunks.size());
  uint64_t need = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const uint64_t bytes = shard.BytesOf(i);
    const bool here = i < copy.chunks.size() && copy.chunks[i] != nullptr &&
                      copy.chunks[i]->bytes() == bytes && copy.shard->chunks[i] == shard.chunks[i];
    if (here) chunks[i] = std::move(copy.chunks[i]);
    if (!here) need += bytes;
  }
  uint64_t freed = 0;
  for (const auto& chunk : copy.chunks) freed += chunk != nullptr ? chunk->bytes() : 0;
  DropChunks(std::move(copy.chunks), dropped);
  if (Status room = memory_->MayTake(need, freed, spare, fmt::format("rank {}", name.rank)); !room) {
    DropChunks(std::move(chunks), dropped);
    (*gang)->copies.erase(name.rank);
    return room;
  }
  *missing = ChunkRuns(chunks, false);
  copy = {name, std::make_shared<const Shard>(std::move(shard)), std::move(chunks)};
  return {};
}

Result<std::shared_ptr<MemoryChunk>> PartnerCopies::RoomFor(uint64_t bytes) {
  return memory_->Allocate(bytes);
}

Status PartnerCopies::Put(const CopyName& name, size_t chunk, std::shared_ptr<const MemoryChunk> data) {
  const std::lock_guard lock(mutex_);
  const auto gang = TakerOf(name);
  if (!gang) return gang.error();
  const auto copy = (*gang)->copies.find(name.rank);
  if (copy == (*gang)->copies.end() || copy->second.name != name)
    return Error{Errc::kConflict, fmt::format("a newer copy of rank {} is on its way", name.rank)};
  if (chunk >= copy->second.chunks.size() || data->bytes() != copy->second.shard->BytesOf(chunk))
    return Error{Errc::kInvalid, fmt::format("rank {}'s shard has no such chunk", name.rank)};
  copy->second.chunks[chunk] = std::move(data);
  return {};
}

ShardCopy PartnerCopies::Find(const CopyName& name) const {
  const std::lock_guard lock(mutex_);
  const auto gang = gangs_.find(name.gang);
  if (gang == gangs_.end()) return {};
  const auto copy = gang->second.copies.find(name.rank);
  if (copy == gang->second.copies.end() || copy->second.name != name) return {};
  return {copy->second.shard, copy->second.chunks};
}

}  // namespace muster
