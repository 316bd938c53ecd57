#include "daemon/partner/parity_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster {
namespace {

uint64_t RowsOf(const std::vector<ParityMember>& members) {
  uint64_t rows = 0;
  for (const ParityMember& member : members) rows = std::max(rows, member.part.count);
  return rows;
}

// Whether a row has the same in it.
bool SameRow(const std::vector<ParityMember>& a, const std::vector<ParityMember>& b, uint64_t row) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [row](const auto& one, const auto& other) {
           if (one.shard->rank != other.shard->rank || one.Has(row) != other.Has(row)) return false;
           if (!one.Has(row)) return true;
           const uint64_t chunk = one.ChunkOf(row);
           return chunk == other.ChunkOf(row) && one.shard->BytesOf(chunk) == other.shard->BytesOf(chunk) &&
                  one.shard->chunks[chunk] == other.shard->chunks[chunk];
         });
}

}  // namespace

uint64_t RowBytes(const std::vector<ParityMember>& members, uint64_t row) {
  uint64_t bytes = 0;
  for (const ParityMember& member : members) {
    if (member.Has(row)) bytes = std::max(bytes, member.shard->BytesOf(member.ChunkOf(row)));
  }
  return bytes;
}

template <typename Which>
ParityParts::Dropped ParityParts::DropIf(Gang& gang, Which which) {
  Dropped dropped;
  for (auto at = gang.slots.begin(); at != gang.slots.end();) {
    const auto next = std::next(at);
    if (which(at->first, at->second)) {
      DropChunks(std::move(at->second.rows), &dropped);
      gang.slots.erase(at);
    }
    at = next;
  }
  return dropped;
}

ParityParts::Dropped ParityParts::Begin(const std::string& gang, uint64_t generation,
                                        uint64_t restore_generation, uint64_t restore_step) {
  const std::lock_guard lock(mutex_);
  Gang& known = gangs_[gang];
  if (generation <= known.generation) return {};
  known.generation = generation;
  return DropIf(known, [&](size_t /*number*/, const Slot& slot) {
    return slot.generation != restore_generation || slot.step != restore_step;
  });
}

ParityParts::Dropped ParityParts::Committed(const std::string& gang, uint64_t generation, size_t slots) {
  const std::lock_guard lock(mutex_);
  const auto found = gangs_.find(gang);
  if (found == gangs_.end() || found->second.generation != generation) return {};
  return DropIf(found->second, [&](size_t number, const Slot& slot) {
    return slot.generation != generation && number >= slots;
  });
}

ParityParts::Dropped ParityParts::End(const std::string& gang) {
  const std::lock_guard lock(mutex_);
  const auto found = gangs_.find(gang);
  if (found == gangs_.end()) return {};
  Dropped dropped;
  for (auto& [number, slot] : found->second.slots) DropChunks(std::move(slot.rows), &dropped);
  gangs_.erase(found);
  return dropped;
}

Status ParityParts::Take(const std::string& gang, uint64_t generation, uint64_t step, size_t slot,
                         std::vector<ParityMember> members, std::vector<uint64_t>* missing,
                         Dropped* dropped) {
  const uint64_t spare = memory_->spare();
  const std::lock_guard lock(mutex_);
  const auto found = gangs_.find(gang);
  if (found == gangs_.end() || found->second.generation != generation)
    return Error{Errc::kConflict,
                 fmt::format("generation {} of gang {} does not run here", generation, gang)};
  Slot& known = found->second.slots[slot];
  if (known.generation == generation && known.step > step)
    return Error{Errc::kConflict, fmt::format("the parity here is of step {}", known.step)};
  CopyChunks rows(RowsOf(members));
  uint64_t need = 0;
  for (uint64_t row = 0; row < rows.size(); ++row) {
    if (row < known.rows.size() && known.rows[row] && SameRow(known.members, members, row)) {
      rows[row] = std::move(known.rows[row]);
    } else {
      need += RowBytes(members, row);
      missing->push_back(row);
    }
  }
  uint64_t freed = 0;
  for (const auto& row : known.rows) freed += row ? row->bytes() : 0;
  DropChunks(std::move(known.rows), dropped);
  if (Status room = memory_->MayTake(need, freed, spare, "parity"); !room) {
    DropChunks(std::move(rows), dropped);
    found->second.slots.erase(slot);
    return room;
  }
  known = {generation, step, std::move(members), std::move(rows)};
  return {};
}

Result<std::shared_ptr<MemoryChunk>> ParityParts::RoomFor(uint64_t bytes) {
  return memory_->Allocate(bytes);
}

Status ParityParts::Put(const std::string& gang, uint64_t generation, uint64_t step, size_t slot,
                        uint64_t row, std::shared_ptr<const MemoryChunk> data) {
  const std::lock_guard lock(mutex_);
  const auto known = gangs_.find(gang);
  if (known != gangs_.end()) {
    const auto at = known->second.slots.find(slot);
    if (at != known->second.slots.end() && at->second.generation == generation && at->second.step == step &&
        row < at->second.rows.size()) {
      at->second.rows[row] = std::move(data);
      return {};
    }
  }
  return Error{Errc::kConflict, fmt::format("parity of step {} is not wanted any more", step)};
}

ParityOf ParityParts::Find(const CopyName& name) const {
  const std::lock_guard lock(mutex_);
  const auto known = gangs_.find(name.gang);
  if (known == gangs_.end()) return {};
  for (const auto& [number, slot] : known->second.slots) {
    if (slot.generation != name.generation || slot.step != name.step) continue;
    ParityOf parity;
    for (const ParityMember& member : slot.members) {
      if (member.shard->rank != name.rank) {
        parity.with.push_back(member.shard->rank);
      } else {
        parity.shard = member.shard;
        parity.part = member.part;
      }
    }
    if (!parity.shard) continue;
    parity.rows.assign(slot.rows.begin(), slot.rows.begin() + static_cast<ptrdiff_t>(parity.part.count));
    return parity;
  }
  return {};
}

}  // namespace muster
