// What retention has dropped goes beside the commits, and holds them up when there is much of it.
#include "daemon/coordinator/removals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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
    for (const Shard& shard : manifest.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i)
        ASSERT_TRUE(store_->Write({"u1", shard.ObjectOf(i)}, "chunk"));
    }
    std::vector<CheckpointInfo> gone;
    ASSERT_TRUE(catalog_->Commit(manifest, 2, &gone));
    removals_->Add(std::move(gone));
  }
  // The thread that removes waits until `go` is set.
  void HoldWorker(std::promise<void>* go) {
    std::promise<void> held;
    removals_->AtTheEnd([go, &held] {
      held.set_value();
      go->get_future().wait();
    });
    held.get_future().wait();
  }
  void WaitForRemovals() {
    std::promise<void> done;
    removals_->AtTheEnd([&] { done.set_value(); });
    done.get_future().wait();
  }
  size_t Objects() {
    return static_cast<size_t>(
        std::count_if(store_->objects().begin(), store_->objects().end(),
                      [](const auto& item) { return item.first.starts_with("data/"); }));
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
  std::atomic<int> orphans_ = 0;  // how often there were some
  std::unique_ptr<Removals> removals_ = std::make_unique<Removals>(catalog_, "1.0", [this] { ++orphans_; });
};

TEST_F(RemovalsTest, AreDoneBesideTheCommitsAndAllOfThemAtTheEnd) {
  std::promise<void> go;
  HoldWorker(&go);
  for (int i = 0; i < 5; ++i) Commit();
  EXPECT_EQ(Left(), 5U);
  go.set_value();
  removals_.reset();
  EXPECT_EQ(Left(), 2U);
}

TEST_F(RemovalsTest, SayWhenObjectsStayOfACheckpointWhoseManifestIsGone) {
  Commit();
  Commit();
  catalog_ = std::make_shared<Catalog>(store_, "u1", "k");  // it has read no manifest yet
  removals_ = std::make_unique<Removals>(catalog_, "1.0", [this] { ++orphans_; });
  ASSERT_TRUE(store_->Remove({"u1", ManifestName("k", 1, fence_)}));
  Commit();
  WaitForRemovals();
  EXPECT_EQ(orphans_, 1);
  Commit();
  WaitForRemovals();
  EXPECT_EQ(orphans_, 1) << "the manifest of the second one is there";
}

TEST_F(RemovalsTest, HoldUpWhoCommitsFasterThanTheyAreDone) {
  std::promise<void> go;
  HoldWorker(&go);
  for (int i = 0; i < 100; ++i) {
    Commit();
    EXPECT_LE(Left(), 6U);
  }
  go.set_value();
  removals_.reset();
  EXPECT_EQ(Left(), 2U);
}

TEST_F(RemovalsTest, AreTriedAgainWhenTheStoreDidNotAnswer) {
  std::atomic<int> asked = 0;
  store_->SetFault([&](const std::string& operation, const std::string&) -> Status {
    if (operation != "remove") return {};
    ++asked;
    return Error{Errc::kUnavailable, "no answer"};
  });
  for (int i = 0; i < 20; ++i) {
    Commit();
    WaitForRemovals();
  }
  EXPECT_EQ(Left(), 20U);
  // Each may take the timeout of the store: a few that fail end a try, of which a commit makes two.
  EXPECT_LE(asked, 2 * 18 * 16);
  store_->SetFault({});
  Commit();
  WaitForRemovals();
  EXPECT_EQ(Left(), 2U);
  EXPECT_EQ(Objects(), 2U * 7);
}

TEST_F(RemovalsTest, GoOnWhereTheyWereCutOff) {
  store_->SetFault([&](const std::string& operation, const std::string& name) -> Status {
    if (operation != "remove" || name.find("/1.2") == std::string::npos) return {};
    return Error{Errc::kUnavailable, "no answer"};
  });
  for (int i = 0; i < 3; ++i) Commit();
  WaitForRemovals();
  EXPECT_EQ(Left(), 3U) << "the manifest goes last";
  EXPECT_LT(Objects(), 3U * 7);
  store_->SetFault({});
  WaitForRemovals();
  EXPECT_EQ(Objects(), 2U * 7);
}

}  // namespace
}  // namespace muster
