#include "daemon/partner/own_shards.h"

namespace muster {

void OwnShards::Committed(const std::string& gang, const std::vector<CommittedShard>& shards) {
  const std::lock_guard lock(mutex_);
  auto& known = gangs_[gang];
  for (const CommittedShard& shard : shards)
    known[shard.shard.rank] = {shard.generation, shard.step, shard.shard, shard.memory};
}

void OwnShards::End(const std::string& gang) {
  const std::lock_guard lock(mutex_);
  gangs_.erase(gang);
}

std::optional<CommittedShard> OwnShards::Find(const CopyName& name) const {
  const std::lock_guard lock(mutex_);
  const auto gang = gangs_.find(name.gang);
  if (gang == gangs_.end()) return std::nullopt;
  const auto own = gang->second.find(name.rank);
  if (own == gang->second.end() || own->second.generation != name.generation ||
      own->second.step != name.step) {
    return std::nullopt;
  }
  auto memory = own->second.memory.lock();
  if (!memory) return std::nullopt;
  return CommittedShard{name.generation, name.step, own->second.shard, std::move(memory)};
}

}  // namespace muster
