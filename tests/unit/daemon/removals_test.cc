// What retention has dropped goes beside the commits, and holds them up when there is much of it.
#include "daemon/coordinator/removals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {
namespace {

class RemovalsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(catalog_->TakeOver("record", "entry"));
    ASSERT_TRUE(catalog_->Advance({1, 0}, fence_, "record"));
  }
  // Commits the next step, of two that are kept, and gives away what has left.
  void Commit() {
    const Manifest manifest = SampleManifest("k", ++step_, fence_, 2);
    std::vector<CheckpointInfo> gone;
    ASSERT_TRUE(catalog_->Commit(manifest, 2, &gone));
    removals_->Add(std::move(gone));
  }
  // How many steps have a manifest in the store.
  size_t Left() {
    size_t count = 0;
    for (uint64_t step = 1; step <= step_; ++step)
      count += store_->Bytes(ManifestName("k", step, fence_)) != nullptr ? 1 : 0;
    return count;
  }

  const Fence fence_{1, 1};
  uint64_t step_ = 0;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::shared_ptr<Catalog> catalog_ = std::make_shared<Catalog>(store_, "u1", "k");
  std::unique_ptr<Removals> removals_ = std::make_unique<Removals>(catalog_);
};

TEST_F(RemovalsTest, AreDoneBesideTheCommitsAndAllOfThemAtTheEnd) {
  std::promise<void> go;
  removals_->worker().Do([&] { go.get_future().wait(); });
  for (int i = 0; i < 5; ++i) Commit();
  EXPECT_EQ(Left(), 5U);
  go.set_value();
  removals_.reset();
  EXPECT_EQ(Left(), 2U);
}

TEST_F(RemovalsTest, HoldUpWhoCommitsFasterThanTheyAreDone) {
  std::promise<void> go;
  removals_->worker().Do([&] { go.get_future().wait(); });
  for (int i = 0; i < 100; ++i) {
    Commit();
    EXPECT_LE(Left(), 6U);
  }
  go.set_value();
  removals_.reset();
  EXPECT_EQ(Left(), 2U);
}

}  // namespace
}  // namespace muster
