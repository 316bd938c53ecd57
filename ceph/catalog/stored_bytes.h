// What checkpoints take of the store: each chunk's object once, however many checkpoints share it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ceph/catalog/catalog.h"

namespace muster {

struct StoredBytes {
  uint64_t bytes = 0;
  std::vector<uint64_t> unreadable;  // steps whose manifest does not read: their chunks are not counted
};
// Reads the manifest of every checkpoint of a key; blocks.
StoredBytes CountStoredBytes(Catalog& catalog, const std::vector<CheckpointInfo>& checkpoints);

// The same for all keys of a space, again and again: a key whose checkpoints are the same as the last time costs one read.
// One thread at a time; blocks for the store.
class StorageUse {
 public:
  StorageUse(std::shared_ptr<Store> store, std::string space);
  Result<uint64_t> Read();

 private:
  struct Known {
    std::vector<std::string> manifests;
    uint64_t bytes = 0;
  };
  const std::shared_ptr<Store> store_;
  const std::string space_;
  std::map<std::string, Known> known_;  // by key
};

}  // namespace muster
