// The manifest that was read last: a program that reads a checkpoint range by range needs the same one for each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ceph/catalog/catalog.h"

namespace muster {

// One thread at a time.
class ManifestCache {
 public:
  // As of Catalog.
  ManifestCache(std::shared_ptr<Store> store, const std::string& space, const std::string& key)
      : catalog_(std::move(store), space, key) {}

  // The manifest of a step, and its entry, as Catalog::LoadManifest gives them. The gang's head is read each time, so a checkpoint that is
  // not listed any more, or has been saved again, is never answered from memory.
  Result<std::shared_ptr<const Manifest>> Get(uint64_t step, CheckpointInfo* entry);

 private:
  Catalog catalog_;
  std::shared_ptr<const Manifest> manifest_;
};

}  // namespace muster
