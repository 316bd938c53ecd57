#include "ceph/catalog/stored_bytes.h"

#include <unordered_set>
#include <utility>

namespace muster {

StoredBytes CountStoredBytes(Catalog& catalog, const std::vector<CheckpointInfo>& checkpoints) {
  StoredBytes stored;
  std::unordered_set<std::string> seen;
  for (const CheckpointInfo& info : checkpoints) {
    const Result<Manifest> manifest = catalog.LoadManifest(info.step);
    if (!manifest) {
      stored.unreadable.push_back(info.step);
      continue;
    }
    for (const Shard& shard : manifest->shards) {
      for (uint64_t chunk = 0; chunk < shard.chunks.size(); ++chunk) {
        if (seen.insert(shard.ObjectOf(chunk)).second) stored.bytes += shard.StoredBytesOf(chunk);
      }
    }
  }
  return stored;
}

StorageUse::StorageUse(std::shared_ptr<Store> store, std::string space)
    : store_(std::move(store)), space_(std::move(space)) {}

Result<uint64_t> StorageUse::Read() {
  const auto index = Catalog::ListKeys(*store_, space_);
  if (!index) return index.error();
  uint64_t bytes = 0;
  for (const auto& [key, entry] : *index) {
    Catalog catalog(store_, space_, key);
    const Result<GangHead> head = catalog.Load();
    if (!head) {
      // One that is not there, or not ours, takes nothing that is known.
      if (head.error().code == Errc::kNotFound || head.error().code == Errc::kCorrupt) continue;
      return head.error();
    }
    std::vector<std::string> manifests;
    for (const CheckpointInfo& info : head->checkpoints) manifests.push_back(info.manifest);
    if (const auto known = known_.find(key); known != known_.end() && known->second.manifests == manifests) {
      bytes += known->second.bytes;
      continue;
    }
    const StoredBytes stored = CountStoredBytes(catalog, head->checkpoints);
    bytes += stored.bytes;
    // What does not read now may read the next time.
    if (stored.unreadable.empty()) known_.insert_or_assign(key, Known{manifests, stored.bytes});
  }
  return bytes;
}

}  // namespace muster
