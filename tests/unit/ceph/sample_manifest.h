// A consistent manifest with made-up digests.
#pragma once

#include <string>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/manifest.h"
#include "ceph/catalog/object_names.h"

namespace muster {

inline Manifest SampleManifest(const std::string& key, uint64_t step, const Fence& fence,
                               uint32_t world_size) {
  Manifest manifest;
  manifest.key = key;
  manifest.step = step;
  manifest.fence = fence;
  manifest.world_size = world_size;
  manifest.created_ns = 1'700'000'000'000'000'000 + static_cast<int64_t>(step);
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    Shard shard;
    shard.rank = rank;
    shard.bytes = 2500 + rank;
    shard.chunk_bytes = 1000;
    shard.prefix = ShardPrefix(key, step, fence, rank);
    for (int i = 0; i < 3; ++i)
      shard.chunks.push_back(DigestOf(std::to_string(rank) + "." + std::to_string(i)));
    manifest.shards.push_back(shard);
  }
  return manifest;
}

}  // namespace muster
