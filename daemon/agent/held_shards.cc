#include "daemon/agent/held_shards.h"

#include <algorithm>
#include <utility>

namespace muster {
namespace {

// libmuster has two staging buffers.
constexpr size_t kMemoriesOfMember = 2;

}  // namespace

template <typename Which>
void HeldShards::DropIf(Member& member, Dropped* dropped, Which which) {
  std::erase_if(member.held, [&](HeldShard& held) {
    if (!which(held)) return false;
    dropped->push_back(std::move(held.memory));
    return true;
  });
}

Result<std::shared_ptr<StagedMemory>> HeldShards::Take(uint32_t rank, UniqueFd&& memory, Dropped* dropped) {
  Member& member = members_[rank];
  const auto known = std::find_if(member.memories.begin(), member.memories.end(),
                                  [&](const auto& item) { return item->Is(memory); });
  if (known != member.memories.end()) {
    const std::shared_ptr<StagedMemory> found = *known;
    DropIf(member, dropped, [&](const HeldShard& held) { return held.memory == found; });
    std::rotate(known, known + 1, member.memories.end());  // the newest is the last
    return found;
  }
  auto taken = StagedMemory::Take(std::move(memory));
  if (!taken) return taken;
  if (member.memories.size() == kMemoriesOfMember) {
    const auto& oldest = member.memories.front();
    DropIf(member, dropped, [&](const HeldShard& held) { return held.memory == oldest; });
    dropped->push_back(std::move(member.memories.front()));
    member.memories.erase(member.memories.begin());
  }
  member.memories.push_back(*taken);
  return taken;
}

HeldShards::Dropped HeldShards::Hold(HeldShard held) {
  Member& member = members_[held.shard.rank];
  const auto& memories = member.memories;
  if (std::find(memories.begin(), memories.end(), held.memory) == memories.end()) return {held.memory};
  member.held.push_back(std::move(held));
  return {};
}

HeldShards::Dropped HeldShards::Committed(uint64_t generation, uint64_t step) {
  Dropped dropped;
  for (auto& [rank, member] : members_) {
    DropIf(member, &dropped, [&](const HeldShard& held) {
      return held.generation < generation || (held.generation == generation && held.step < step);
    });
  }
  return dropped;
}

HeldShards::Dropped HeldShards::Begin(uint64_t generation, uint64_t step, uint64_t limit) {
  Dropped dropped;
  uint64_t bytes = 0;
  for (auto& [rank, member] : members_) {
    for (auto& memory : std::exchange(member.memories, {})) dropped.push_back(std::move(memory));
    DropIf(member, &dropped, [&](const HeldShard& held) {
      if (held.generation != generation || held.step != step || held.shard.bytes > limit - bytes) return true;
      bytes += held.shard.bytes;
      return false;
    });
  }
  std::erase_if(members_, [](const auto& item) { return item.second.held.empty(); });
  return dropped;
}

const HeldShard* HeldShards::Find(uint32_t rank, uint64_t generation, uint64_t step) const {
  const auto member = members_.find(rank);
  if (member == members_.end()) return nullptr;
  for (const HeldShard& held : member->second.held) {
    if (held.generation == generation && held.step == step) return &held;
  }
  return nullptr;
}

HeldShards::Dropped HeldShards::DropBefore(uint32_t rank, uint64_t generation) {
  Dropped dropped;
  if (const auto member = members_.find(rank); member != members_.end())
    DropIf(member->second, &dropped, [&](const HeldShard& held) { return held.generation < generation; });
  return dropped;
}

HeldShards::Dropped HeldShards::Drop(uint32_t rank, uint64_t generation, uint64_t step) {
  Dropped dropped;
  if (const auto member = members_.find(rank); member != members_.end()) {
    DropIf(member->second, &dropped,
           [&](const HeldShard& held) { return held.generation == generation && held.step == step; });
  }
  return dropped;
}

}  // namespace muster
