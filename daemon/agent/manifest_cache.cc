#include "daemon/agent/manifest_cache.h"

#include <algorithm>
#include <utility>

namespace muster {

Result<std::shared_ptr<const Manifest>> ManifestCache::Get(uint64_t step, CheckpointInfo* entry) {
  const Result<GangHead> head = catalog_.Load();
  if (!head) return head.error();
  const auto listed = std::find_if(head->checkpoints.begin(), head->checkpoints.end(),
                                   [&](const CheckpointInfo& c) { return c.step == step; });
  if (listed != head->checkpoints.end() && manifest_ && manifest_->step == step &&
      manifest_->fence == listed->fence) {
    *entry = *listed;
    return manifest_;
  }
  manifest_.reset();
  Result<Manifest> loaded = catalog_.LoadManifest(step, entry);
  if (!loaded) return loaded.error();
  manifest_ = std::make_shared<const Manifest>(*std::move(loaded));
  return manifest_;
}

}  // namespace muster
