// Chunks that several checkpoints consist of: they stay as long as one of them is listed, whatever happens, and no longer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "tests/unit/ceph/catalog_rig.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SharedChunks : public CatalogTest {
 protected:
  // As Save, but the shards share all chunks of the base but one: number `changed` of each.
  Result<std::vector<uint64_t>> SaveLike(Catalog& catalog, Manifest base, uint64_t step, const Fence& fence,
                                         size_t changed, size_t keep = 2) {
    made_ = SampleManifest("k", step, fence, 2);
    for (size_t rank = 0; rank < 2; ++rank) {
      Shard& shard = made_.shards[rank];
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        if (i != changed) shard.AddElsewhere(i, base.shards[rank].PrefixOf(i));
      }
      EXPECT_TRUE(store_->Write({"u1", shard.ObjectOf(changed)}, "chunk"));
    }
    return catalog.Commit(made_, keep);
  }

  // Every chunk of every listed checkpoint is there.
  void ExpectWhole() {
    for (const uint64_t step : Steps()) {
      const auto manifest = catalog_.LoadManifest(step);
      ASSERT_TRUE(manifest) << manifest.error().message;
      for (const Shard& shard : manifest->shards) {
        for (size_t i = 0; i < shard.chunks.size(); ++i) {
          EXPECT_NE(store_->Bytes(shard.ObjectOf(i)), nullptr) << step << " needs " << shard.ObjectOf(i);
        }
      }
    }
  }

  Manifest made_;  // the latest
};

TEST_F(SharedChunks, OutliveTheCheckpointThatWroteThem) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  Manifest base = SampleManifest("k", 100, fence, 2);
  for (uint64_t step = 200; step <= 900; step += 100) {
    const auto saved = SaveLike(catalog_, base, step, fence, step / 100 % 3);
    ASSERT_TRUE(saved) << saved.error().message;
    ExpectWhole();
    base = made_;
  }
  EXPECT_THAT(Steps(), ElementsAre(800, 900));
  // Of each rank: three chunks of the newest one, and the one that only the one before has; two manifests.
  EXPECT_EQ(store_->objects().size(), 2U * 4 + 2);
  // A checkpoint that shares nothing, twice, and all that was shared is gone.
  ASSERT_TRUE(Save(catalog_, 1000, fence));
  ExpectWhole();
  ASSERT_TRUE(Save(catalog_, 1100, fence));
  EXPECT_EQ(store_->objects().size(), 2U * (2 * 3 + 1));
}

TEST_F(SharedChunks, AreKnownToACoordinatorThatTakesOver) {
  Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  ASSERT_TRUE(SaveLike(catalog_, SampleManifest("k", 100, fence, 2), 200, fence, 0));
  const Manifest base = made_;
  ASSERT_TRUE(catalog_copy_.TakeOver("", "entry"));
  ++fence.term;
  ASSERT_TRUE(SaveLike(catalog_copy_, base, 300, fence, 1));
  EXPECT_THAT(Steps(), ElementsAre(200, 300));
  ExpectWhole();
}

TEST_F(SharedChunks, AreNoOrphans) {
  const Fence first = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, first));
  ASSERT_TRUE(SaveLike(catalog_, SampleManifest("k", 100, first, 2), 200, first, 0));
  ASSERT_TRUE(SaveLike(catalog_, made_, 300, first, 0));
  ASSERT_TRUE(SaveLike(catalog_, made_, 400, first, 1));
  const Fence second{first.term, first.generation + 1};
  ASSERT_TRUE(catalog_.Advance(first, second, "record 2"));
  // One that knows nothing from before.
  const auto removed = catalog_copy_.CollectOrphans(second);
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(*removed, 0U);
  ExpectWhole();
}

TEST_F(SharedChunks, OfAShardThatWasNotCommittedMayBeShared) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  const Manifest failed = SampleManifest("k", 200, fence, 2);
  for (const Shard& shard : failed.shards) {
    for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(store_->Write({"u1", shard.ObjectOf(i)}, "chunk"));
  }
  ASSERT_TRUE(SaveLike(catalog_, failed, 300, fence, 0));
  const Fence second{fence.term, fence.generation + 1};
  ASSERT_TRUE(catalog_.Advance(fence, second, "record 2"));
  EXPECT_EQ(*catalog_.CollectOrphans(second), 2U) << "the chunk that is not shared, of each rank";
  ExpectWhole();
}

TEST_F(SharedChunks, ThatAreGoneAreNotCommitted) {
  const Fence first = Start(catalog_);
  const Manifest base = SampleManifest("k", 100, first, 2);
  ASSERT_TRUE(Save(catalog_, 100, first));
  for (const uint64_t step : {200, 300}) ASSERT_TRUE(Save(catalog_, step, first));
  const Fence second{first.term, first.generation + 1};
  ASSERT_TRUE(catalog_.Advance(first, second, "record 2"));
  const auto saved = SaveLike(catalog_, base, 400, second, 0);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Errc::kCorrupt);
  EXPECT_THAT(saved.error().message, HasSubstr("data/k/100.1.1/0.1"));
  EXPECT_THAT(Steps(), ElementsAre(200, 300));
}

TEST_F(SharedChunks, StayWhenTheStoreDoesNotSayWhoNeedsThem) {
  Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  ASSERT_TRUE(SaveLike(catalog_, SampleManifest("k", 100, fence, 2), 200, fence, 0));
  const Manifest base = made_;
  ASSERT_TRUE(catalog_copy_.TakeOver("", "entry"));
  ++fence.term;
  store_->SetFault([](const std::string& operation, const std::string& name) {
    const bool manifest = operation == "read" && name.ends_with("/manifest");
    return manifest ? Status(Error{Errc::kUnavailable, "no answer"}) : Status();
  });
  ASSERT_TRUE(Save(catalog_copy_, 300, fence));
  EXPECT_EQ(SaveLike(catalog_copy_, base, 400, fence, 0).error().code, Errc::kUnavailable);
  store_->SetFault(nullptr);
  EXPECT_THAT(Steps(), ElementsAre(200, 300));
  ExpectWhole();
}

// The manifest of a listed checkpoint answers EIO once, while an older one is removed by who has not read it before.
TEST_F(SharedChunks, OutliveTheMomentInWhichAListedManifestDoesNotRead) {
  const Fence first = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, first, 9));
  ASSERT_TRUE(SaveLike(catalog_, SampleManifest("k", 100, first, 2), 200, first, 0, 9));
  const std::vector<CheckpointInfo> gone = {catalog_.Load()->checkpoints.front()};
  const Fence second{first.term, first.generation + 1};
  ASSERT_TRUE(catalog_.Advance(first, second, "record 2"));
  const auto drop_oldest = [](const GangHead& head) {
    return Result<std::vector<uint64_t>>(std::vector{head.checkpoints.front().step});
  };
  const std::string own = ChunkName(ShardPrefix("k", 100, first, 0), 0);  // of 100, and not of 200
  int left = 0;
  const auto fail_once = [&] {
    left = 1;
    store_->SetFault([&](const std::string& operation, const std::string& name) -> Status {
      if (operation != "read" || name != ManifestName("k", 200, first) || left-- <= 0) return {};
      return Error{Errc::kCorrupt, "no replica of the object verifies"};
    });
  };
  fail_once();
  EXPECT_EQ(catalog_copy_.LoadManifest(200).error().code, Errc::kCorrupt);
  fail_once();
  EXPECT_EQ(catalog_copy_.Drop(drop_oldest).error().code, Errc::kCorrupt);
  ExpectWhole();
  EXPECT_NE(store_->Bytes(ManifestName("k", 100, first)), nullptr) << "it says what is left to be removed";
  fail_once();
  EXPECT_EQ(*Catalog(store_, "u1", "k").CollectOrphans(second), 0U);
  ExpectWhole();
  EXPECT_NE(store_->Bytes(own), nullptr);
  // The same catalog removes what it may when the manifest reads again.
  ASSERT_TRUE(catalog_copy_.RemoveObjects(gone));
  ExpectWhole();
  EXPECT_EQ(store_->Bytes(own), nullptr);
  EXPECT_EQ(store_->Bytes(ManifestName("k", 100, first)), nullptr);
}

// Newer ones may share with it, and not it with them: it does not hold up what comes after it.
TEST_F(SharedChunks, OfAListedCheckpointThatNeverReadsStayAndNewerOnesAreRemoved) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence, 9));
  ASSERT_TRUE(SaveLike(catalog_, SampleManifest("k", 100, fence, 2), 200, fence, 0, 9));
  ASSERT_TRUE(SaveLike(catalog_, made_, 300, fence, 1, 9));
  ASSERT_TRUE(Save(catalog_, 400, fence, 9));
  store_->Bytes(ManifestName("k", 200, fence))->front() ^= 1;
  const auto before = store_->objects();
  const auto dropped = catalog_copy_.Drop(
      [](const GangHead&) { return Result<std::vector<uint64_t>>(std::vector<uint64_t>{300}); });
  ASSERT_TRUE(dropped) << dropped.error().message;
  for (const auto& [name, bytes] : before)
    EXPECT_EQ(store_->objects().contains(name), !name.starts_with("data/k/300.")) << name;
  // Entries that do not read are of the same kind.
  store_->heads()["gang/k"].entries["checkpoint/200"] = "scribble";
  EXPECT_FALSE(catalog_copy_.Drop(
      [](const GangHead&) { return Result<std::vector<uint64_t>>(std::vector<uint64_t>{100}); }));
  for (const auto& [name, bytes] : before)
    EXPECT_EQ(store_->objects().contains(name), !name.starts_with("data/k/300.")) << name;
}

// Whatever is shared and removed in whatever order, and wherever removing stops.
TEST_F(SharedChunks, AreThereAsLongAsAnyCheckpointHasThem) {
  std::mt19937 random(7);
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 1, fence));
  Manifest base = SampleManifest("k", 1, fence, 2);
  for (uint64_t step = 2; step < 300; ++step) {
    if (pick(4) == 0) {
      size_t left = pick(8);
      store_->SetFault([left](const std::string& operation, const std::string&) mutable {
        if (operation != "remove" || left-- > 0) return Status();
        left = 0;
        return Status(Error{Errc::kUnavailable, "musterd died here"});
      });
    }
    if (pick(10) == 0) {
      ASSERT_TRUE(Save(catalog_, step, fence, 2 + pick(3)));
      made_ = SampleManifest("k", step, fence, 2);
    } else {
      ASSERT_TRUE(SaveLike(catalog_, base, step, fence, pick(3), 2 + pick(3)));
    }
    store_->SetFault(nullptr);
    ExpectWhole();
    base = made_;
    if (pick(12) != 0) continue;
    const Fence next{fence.term, fence.generation + 1};
    ASSERT_TRUE(catalog_.Advance(fence, next, "next"));
    fence = next;
    ASSERT_TRUE(catalog_.CollectOrphans(fence));
    ExpectWhole();
  }
}

// musterd dies at each operation of the store in turn, while it commits, prunes and collects: nothing that is listed has lost
// anything, and the next coordinator's collection leaves nothing else.
TEST_F(SharedChunks, AreWholeWhereverMusterdDiesAndNothingElseStays) {
  size_t survived = 0;
  for (size_t dies_at = 0; survived == 0; ++dies_at) {
    store_ = std::make_shared<MemoryStore>();
    catalog_ = Catalog(store_, "u1", "k");
    Catalog dying(store_, "u1", "k");
    const Fence first = Start(dying);
    ASSERT_TRUE(Save(dying, 100, first));
    ASSERT_TRUE(SaveLike(dying, SampleManifest("k", 100, first, 2), 200, first, 0));
    // Of another generation, as an orphan is.
    const Fence second{first.term, first.generation + 1};
    ASSERT_TRUE(store_->Write({"u1", ChunkName(ShardPrefix("k", 250, first, 0), 0)}, "torn"));
    ASSERT_TRUE(dying.Advance(first, second, "record 2"));
    Manifest third = SampleManifest("k", 300, second, 2);
    for (Shard& shard : third.shards) {
      for (const size_t shared : {0, 1})
        shard.AddElsewhere(shared, made_.shards[shard.rank].PrefixOf(shared));
      ASSERT_TRUE(store_->Write({"u1", shard.ObjectOf(2)}, "chunk"));
    }
    size_t operations = 0;
    store_->SetFault([&](const std::string&, const std::string&) {
      return operations++ < dies_at ? Status() : Status(Error{Errc::kUnavailable, "musterd died here"});
    });
    (void)dying.CollectOrphans(second);
    (void)dying.Commit(third, 2);
    (void)dying.Drop([](const GangHead& head) {
      std::vector<uint64_t> oldest;
      if (head.checkpoints.size() > 1) oldest.push_back(head.checkpoints.front().step);
      return Result<std::vector<uint64_t>>(oldest);
    });
    store_->SetFault(nullptr);
    survived = operations <= dies_at ? 1 : 0;
    ExpectWhole();

    Catalog next(store_, "u1", "k");
    const auto head = next.TakeOver("", "entry");
    ASSERT_TRUE(head) << head.error().message;
    ASSERT_TRUE(next.CollectOrphans(head->fence, Catalog::Writers::kNone));
    ExpectWhole();
    std::set<std::string> needed;
    for (const uint64_t step : Steps()) {
      const auto manifest = next.LoadManifest(step);
      ASSERT_TRUE(manifest) << manifest.error().message;
      needed.insert(ManifestName("k", step, manifest->fence));
      for (const Shard& shard : manifest->shards) {
        for (size_t i = 0; i < shard.chunks.size(); ++i) needed.insert(shard.ObjectOf(i));
      }
    }
    EXPECT_EQ(store_->objects().size(), needed.size()) << "died at operation " << dies_at;
    ASSERT_FALSE(HasFailure()) << "died at operation " << dies_at;
  }
}

}  // namespace
}  // namespace muster
