#include "daemon/partner/own_shards.h"

namespace muster {

void OwnShards::Committed(const std::string& gang, const std::vector<CommittedShard>& shards) {
  std::vector<std::shared_ptr<const Shard>> copies;
  copies.reserve(shards.size());
  for (const CommittedShard& shard : shards) copies.push_back(std::make_shared<const Shard>(shard.shard));
  const std::lock_guard lock(mutex_);
  auto& known = gangs_[gang];
  for (size_t i = 0; i < shards.size(); ++i)
    known[copies[i]->rank] = {shards[i].generation, shards[i].step, copies[i], shards[i].memory};
}

void OwnShards::End(const std::string& gang) {
  const std::lock_guard lock(mutex_);
  gangs_.erase(gang);
}

std::optional<OwnShards::Held> OwnShards::Find(const CopyName& name) const {
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
  return Held{own->second.shard, std::move(memory)};
}

}  // namespace muster
