// A catalog on a store in memory, and what saves to it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {

class CatalogTest : public testing::Test {
 protected:
  // Takes the key over and starts generation 1.
  Fence Start(Catalog& catalog) {
    const auto head = catalog.TakeOver("record 0", "index entry");
    EXPECT_TRUE(head) << head.error().message;
    const Fence fence{head->fence.term, head->fence.generation + 1};
    EXPECT_TRUE(catalog.Advance(head->fence, fence, "record 1"));
    return fence;
  }

  // Writes the objects that the manifest names, then commits it.
  Result<std::vector<uint64_t>> Save(Catalog& catalog, uint64_t step, const Fence& fence, size_t keep = 2) {
    const Manifest manifest = SampleManifest("k", step, fence, 2);
    for (const Shard& shard : manifest.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        EXPECT_TRUE(store_->Write({"u1", ChunkName(shard.prefix, i)}, "chunk"));
      }
    }
    return catalog.Commit(manifest, keep);
  }

  std::vector<uint64_t> Steps() {
    const auto head = catalog_.Load();
    EXPECT_TRUE(head) << head.error().message;
    std::vector<uint64_t> steps;
    for (const auto& checkpoint : head->checkpoints) steps.push_back(checkpoint.step);
    return steps;
  }
  // As the head lists it; "": it does not.
  std::string ManifestOf(uint64_t step) {
    const auto head = catalog_.Load();
    for (const auto& checkpoint : head->checkpoints) {
      if (checkpoint.step == step) return checkpoint.manifest;
    }
    return "";
  }

  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  Catalog catalog_{store_, "u1", "k"};
  Catalog catalog_copy_{store_, "u1", "k"};
};

}  // namespace muster
