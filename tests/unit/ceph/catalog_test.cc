#include "ceph/catalog/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/ceph/catalog_rig.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(CatalogTest, AKeyThatWasNeverUsedIsNotFound) {
  EXPECT_EQ(catalog_.Load().error().code, Errc::kNotFound);
  EXPECT_TRUE(Catalog::ListKeys(*store_, "u1")->empty());
}

TEST_F(CatalogTest, TheFirstTakeOverMakesTheHead) {
  const auto head = catalog_.TakeOver("record", "entry");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->fence, (Fence{1, 0}));
  EXPECT_EQ(head->record, "");
  const auto loaded = catalog_.Load();
  EXPECT_EQ(loaded->record, "record");
  EXPECT_EQ(loaded->fence, (Fence{1, 0}));
  EXPECT_FALSE(loaded->latest);
}

TEST_F(CatalogTest, TheNextTakeOverRaisesTheTermAndKeepsTheGeneration) {
  Start(catalog_);
  Catalog other(store_, "u1", "k");
  const auto head = other.TakeOver("", "entry");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->fence, (Fence{2, 1}));
  EXPECT_EQ(head->record, "record 1");
  EXPECT_EQ(other.Load()->record, "record 1");  // an empty record keeps what is there
}

TEST_F(CatalogTest, TheIndexListsEveryKey) {
  ASSERT_TRUE(catalog_.TakeOver("", "about k"));
  ASSERT_TRUE(Catalog(store_, "u1", "other").TakeOver("", "about other"));
  EXPECT_EQ(*Catalog::ListKeys(*store_, "u1"),
            (std::map<std::string, std::string>{{"k", "about k"}, {"other", "about other"}}));
}

TEST_F(CatalogTest, ATakeOverMadeFromAnOlderRecordIsRefused) {
  const Fence fence = Start(catalog_);
  const GangHead old = *catalog_.Load();
  ASSERT_TRUE(catalog_.Advance(fence, fence, "record 2"));
  EXPECT_EQ(catalog_.TakeOver("from record 1", "entry", &old).error().code, Errc::kConflict);
  EXPECT_EQ(catalog_
                .AdvanceForSure(
                    fence, {fence.term + 1, fence.generation}, "from record 1",
                    [](const Error& /*error*/) { return false; }, old.record)
                .error()
                .code,
            Errc::kConflict);
  ASSERT_TRUE(catalog_.Advance(fence, {fence.term, fence.generation + 1}, "record 1"));
  EXPECT_EQ(catalog_.TakeOver("from record 1", "entry", &old).error().code, Errc::kConflict);
  EXPECT_EQ(catalog_.Load()->record, "record 1");
  const GangHead now = *catalog_.Load();
  ASSERT_TRUE(catalog_.TakeOver("from record 2", "entry", &now));
  EXPECT_EQ(catalog_.Load()->record, "from record 2");
  EXPECT_EQ(Catalog(store_, "u1", "none").TakeOver("x", "entry", &now).error().code, Errc::kConflict);
}

TEST_F(CatalogTest, OfTwoWhoHaveFoundNoHeadOneMakesIt) {
  const GangHead none;
  ASSERT_TRUE(catalog_.TakeOver("the first's", "entry", &none));
  EXPECT_EQ(catalog_copy_.TakeOver("the second's", "entry", &none).error().code, Errc::kConflict);
  EXPECT_EQ(catalog_.Load()->record, "the first's");
}

TEST_F(CatalogTest, OfTwoCoordinatorsWhoTakeOverOneIsObeyed) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ready{0};
    std::vector<Result<GangHead>> heads(2, Error{});
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        Catalog mine(store_, "u1", "k");
        ++ready;
        while (ready < 2) std::this_thread::yield();
        heads[i] = mine.TakeOver("by " + std::to_string(i), "entry");
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Fence now = catalog_.Load()->fence;
    int holders = 0;
    for (int i = 0; i < 2; ++i) {
      if (!heads[i]) {
        EXPECT_EQ(heads[i].error().code, Errc::kConflict);
        continue;
      }
      // One after the other is fine too: then the earlier one's fence is no longer good for anything.
      if (heads[i]->fence == now) ++holders;
      const Status advanced = Catalog(store_, "u1", "k").Advance(heads[i]->fence, heads[i]->fence, "mine");
      EXPECT_EQ(advanced.ok(), heads[i]->fence == now);
    }
    EXPECT_EQ(holders, 1);
  }
}

TEST_F(CatalogTest, ACommitMovesLatest) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  ASSERT_TRUE(Save(catalog_, 200, fence));
  const auto head = catalog_.Load();
  EXPECT_EQ(head->latest, 200u);
  ASSERT_EQ(head->checkpoints.size(), 2u);
  EXPECT_EQ(head->checkpoints[0].step, 100u);
  EXPECT_EQ(head->checkpoints[1].bytes, 2500u + 2501u);
  EXPECT_EQ(head->checkpoints[1].world_size, 2u);
  EXPECT_EQ(head->checkpoints[1].fence, fence);
  EXPECT_EQ(store_->heads()["gang/k"].entries["latest"], "200");
  const auto manifest = catalog_.LoadManifest(200);
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_EQ(manifest->Encode(), SampleManifest("k", 200, fence, 2).Encode());
}

TEST_F(CatalogTest, StepsAreInNumericalOrder) {
  const Fence fence = Start(catalog_);
  for (const uint64_t step : {9, 10, 100, 1000}) ASSERT_TRUE(Save(catalog_, step, fence, 10));
  EXPECT_THAT(Steps(), ElementsAre(9, 10, 100, 1000));
}

TEST_F(CatalogTest, AnOlderGenerationCannotCommit) {
  const Fence old = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, old));
  ASSERT_TRUE(catalog_.Advance(old, {old.term, old.generation + 1}, "record 2"));
  const auto late = Save(catalog_, 200, old);
  EXPECT_EQ(late.error().code, Errc::kConflict);
  EXPECT_THAT(Steps(), ElementsAre(100));
  EXPECT_EQ(catalog_.Load()->latest, 100u);
}

TEST_F(CatalogTest, AnOlderTermCanDoNothing) {
  const Fence old = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, old));
  ASSERT_TRUE(Catalog(store_, "u1", "k").TakeOver("", "entry"));
  EXPECT_EQ(Save(catalog_, 200, old).error().code, Errc::kConflict);
  EXPECT_EQ(catalog_.Advance(old, {old.term, old.generation + 1}, "x").error().code, Errc::kConflict);
  EXPECT_EQ(catalog_.MarkBad(old, 100, ManifestOf(100), "x").error().code, Errc::kConflict);
  EXPECT_EQ(catalog_.CollectOrphans(old).error().code, Errc::kConflict);
}

TEST_F(CatalogTest, ATakeOverBetweenManifestAndHeadLeavesTheCommitInvisible) {
  const Fence fence = Start(catalog_);
  bool taken = false;
  store_->SetFault([&](const std::string& operation, const std::string& name) {
    if (operation == "write" && name.ends_with("/manifest") && !taken) {
      taken = true;
      EXPECT_TRUE(Catalog(store_, "u1", "k").TakeOver("", "entry"));
    }
    return Status();
  });
  EXPECT_EQ(Save(catalog_, 100, fence).error().code, Errc::kConflict);
  EXPECT_TRUE(taken);
  EXPECT_THAT(Steps(), ElementsAre());
  EXPECT_EQ(store_->Bytes(ManifestName("k", 100, fence)), nullptr);
}

TEST_F(CatalogTest, TheFenceNeverGoesBack) {
  const Fence fence = Start(catalog_);
  EXPECT_EQ(catalog_.Advance(fence, {fence.term, fence.generation - 1}, "x").error().code, Errc::kInvalid);
  EXPECT_EQ(catalog_.Advance(fence, {fence.term + 1, 0}, "x").error().code, Errc::kInvalid);
  EXPECT_TRUE(catalog_.Advance(fence, fence, "only the record"));
  EXPECT_EQ(catalog_.Load()->record, "only the record");
}

TEST_F(CatalogTest, KeepsTheNewestGoodOnesAndRemovesAllObjectsOfTheOthers) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  ASSERT_TRUE(Save(catalog_, 200, fence));
  const auto removed = Save(catalog_, 300, fence);
  ASSERT_TRUE(removed);
  EXPECT_THAT(*removed, ElementsAre(100));
  EXPECT_THAT(Steps(), ElementsAre(200, 300));
  for (const auto& [name, data] : store_->objects()) EXPECT_FALSE(name.starts_with("data/k/100.")) << name;
  EXPECT_EQ(store_->objects().size(), 2u * (2 * 3 + 1));
}

TEST_F(CatalogTest, BadOnesDoNotCountAsKept) {
  const Fence fence = Start(catalog_);
  for (const uint64_t step : {100, 200, 300}) ASSERT_TRUE(Save(catalog_, step, fence, 3));
  ASSERT_TRUE(catalog_.MarkBad(fence, 200, ManifestOf(200), "a byte flipped"));
  ASSERT_TRUE(Save(catalog_, 400, fence, 3));
  EXPECT_THAT(Steps(), ElementsAre(100, 200, 300, 400));
  const auto removed = Save(catalog_, 500, fence, 3);
  EXPECT_THAT(*removed, ElementsAre(100, 200));
}

TEST_F(CatalogTest, MarkingBadFallsBackToThePreviousGoodOne) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  ASSERT_TRUE(Save(catalog_, 200, fence));
  ASSERT_TRUE(catalog_.MarkBad(fence, 200, ManifestOf(200), "object x is missing"));
  auto head = catalog_.Load();
  EXPECT_EQ(head->latest, 100u);
  EXPECT_FALSE(head->checkpoints[1].good);
  EXPECT_EQ(head->checkpoints[1].reason, "object x is missing");
  ASSERT_TRUE(catalog_.MarkBad(fence, 100, ManifestOf(100), "so is this"));
  EXPECT_FALSE(catalog_.Load()->latest);
  EXPECT_FALSE(store_->heads()["gang/k"].entries.contains("latest"));
  EXPECT_EQ(catalog_.MarkBad(fence, 300, ManifestOf(300), "x").error().code, Errc::kNotFound);
}

TEST_F(CatalogTest, ABadStepCanBeSavedAgainByTheNextGeneration) {
  const Fence first = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, first));
  ASSERT_TRUE(Save(catalog_, 200, first));
  ASSERT_TRUE(catalog_.MarkBad(first, 200, ManifestOf(200), "bad"));
  const Fence second{first.term, first.generation + 1};
  ASSERT_TRUE(catalog_.Advance(first, second, "record 2"));
  ASSERT_TRUE(Save(catalog_, 200, second));
  const auto head = catalog_.Load();
  EXPECT_EQ(head->latest, 200u);
  EXPECT_EQ(head->checkpoints.back().fence, second);
  for (const auto& [name, data] : store_->objects()) {
    EXPECT_FALSE(name.starts_with(CheckpointPrefix("k", 200, first))) << name;
  }
}

TEST_F(CatalogTest, CommittingTheSameManifestAgainChangesNothing) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  const auto objects = store_->objects();
  ASSERT_TRUE(Save(catalog_, 100, fence));
  EXPECT_EQ(store_->objects(), objects);
  EXPECT_THAT(Steps(), ElementsAre(100));
}

TEST_F(CatalogTest, ASuccessorThatCommitsTheSameShardsAgainKeepsTheirObjects) {
  const Fence first = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 1, first));
  // Its coordinator died before it could tell anybody: the agents hand the same shards to the next one.
  ASSERT_TRUE(catalog_copy_.TakeOver("", "index entry"));
  Manifest again = SampleManifest("k", 1, first, 2);
  again.fence.term += 1;
  ASSERT_TRUE(catalog_copy_.Commit(again, 2));
  const auto manifest = catalog_.LoadManifest(1);
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_EQ(manifest->fence, again.fence);
  for (const Shard& shard : manifest->shards) {
    for (size_t i = 0; i < shard.chunks.size(); ++i) {
      EXPECT_TRUE(store_->Read({"u1", ChunkName(shard.prefix, i)})) << ChunkName(shard.prefix, i);
    }
  }
  EXPECT_FALSE(store_->Read({"u1", ManifestName("k", 1, first)}));
}

TEST_F(CatalogTest, ACommitWhoseAnswerGotLostIsACommit) {
  const Fence fence = Start(catalog_);
  int updates = 0;
  store_->SetFault([&](const std::string& operation, const std::string&) {
    // The first attempt is done and then reported as timed out.
    if (operation == "update_head" && updates++ == 0) {
      store_->SetFault(nullptr);
      EXPECT_TRUE(Save(catalog_copy_, 100, fence));
      return Status(Error{Errc::kUnavailable, "timed out"});
    }
    return Status();
  });
  EXPECT_TRUE(Save(catalog_, 100, fence));
  EXPECT_THAT(Steps(), ElementsAre(100));
}

TEST_F(CatalogTest, ACommitThatTheStoreDidNotTakeIsAnError) {
  const Fence fence = Start(catalog_);
  store_->SetFault([&](const std::string& operation, const std::string&) {
    return operation == "update_head" ? Status(Error{Errc::kUnavailable, "timed out"}) : Status();
  });
  EXPECT_EQ(Save(catalog_, 100, fence).error().code, Errc::kUnavailable);
  store_->SetFault(nullptr);
  EXPECT_THAT(Steps(), ElementsAre());
}

TEST_F(CatalogTest, AManifestThatIsNotConsistentIsNotCommitted) {
  const Fence fence = Start(catalog_);
  Manifest manifest = SampleManifest("k", 100, fence, 2);
  manifest.shards.pop_back();
  EXPECT_EQ(catalog_.Commit(manifest, 2).error().code, Errc::kInvalid);
  EXPECT_EQ(catalog_.Commit(SampleManifest("other", 100, fence, 2), 2).error().code, Errc::kInvalid);
  EXPECT_THAT(Steps(), ElementsAre());
}

TEST_F(CatalogTest, ADamagedManifestIsCorruptAndSaysHow) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  std::string* bytes = store_->Bytes(ManifestName("k", 100, fence));
  ASSERT_NE(bytes, nullptr);
  const std::string good = *bytes;
  *bytes = good + " ";
  auto manifest = catalog_.LoadManifest(100);
  EXPECT_EQ(manifest.error().code, Errc::kCorrupt);
  EXPECT_THAT(manifest.error().message, HasSubstr("digest"));
  store_->objects().erase(ManifestName("k", 100, fence));
  manifest = catalog_.LoadManifest(100);
  EXPECT_EQ(manifest.error().code, Errc::kCorrupt);
  EXPECT_THAT(manifest.error().message, HasSubstr("missing"));
  EXPECT_EQ(catalog_.LoadManifest(999).error().code, Errc::kNotFound);
}

TEST_F(CatalogTest, AnEntryThatDoesNotReadIsBadAndTheOthersStay) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  ASSERT_TRUE(Save(catalog_, 200, fence));
  for (const char* text : {"", "nonsense", "{}", "[1]", "{\"version\":1}"}) {
    store_->heads()["gang/k"].entries["checkpoint/200"] = text;
    const auto head = catalog_.Load();
    ASSERT_TRUE(head) << head.error().message;
    EXPECT_EQ(head->latest, 100u);
    ASSERT_EQ(head->checkpoints.size(), 2u);
    EXPECT_FALSE(head->checkpoints[1].good);
    EXPECT_EQ(catalog_.LoadManifest(200).error().code, Errc::kCorrupt);
    EXPECT_TRUE(catalog_.MarkBad(fence, 200, ManifestOf(200), "does not read"));
  }
  // It does not stand in the way of the next ones.
  ASSERT_TRUE(Save(catalog_, 300, fence));
  EXPECT_EQ(catalog_.Load()->latest, 300u);
}

TEST_F(CatalogTest, AHeadOfSomebodyElseIsLeftAlone) {
  store_->heads()["gang/k"] = Head{"not our fence", {{"x", "y"}}};
  EXPECT_EQ(catalog_.Load().error().code, Errc::kCorrupt);
  EXPECT_EQ(catalog_.TakeOver("r", "i").error().code, Errc::kCorrupt);
  EXPECT_EQ(store_->heads()["gang/k"].fence, "not our fence");
}

TEST_F(CatalogTest, OrphansOfOlderGenerationsAreCollectedAndNothingElse) {
  const Fence first = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, first));
  // A save that was torn, a listed checkpoint with an object of an older term, and somebody's file.
  ASSERT_TRUE(store_->Write({"u1", ChunkName(ShardPrefix("k", 150, first, 0), 0)}, "torn"));
  ASSERT_TRUE(
      store_->Write({"u1", ChunkName(ShardPrefix("k", 100, {0, first.generation}, 0), 0)}, "older term"));
  ASSERT_TRUE(store_->Write({"u1", "data/k/notes"}, "not ours"));
  ASSERT_TRUE(store_->Write({"u1", ChunkName(ShardPrefix("kk", 150, first, 0), 0)}, "another key's"));
  const Fence second{first.term + 1, first.generation + 1};
  ASSERT_TRUE(Catalog(store_, "u1", "k").TakeOver("", "i"));
  ASSERT_TRUE(catalog_.Advance({first.term + 1, first.generation}, second, "record 2"));
  ASSERT_TRUE(store_->Write({"u1", ChunkName(ShardPrefix("k", 160, second, 0), 0)}, "under way"));
  // Under way when the coordinator was replaced: the term is older, the generation is not.
  ASSERT_TRUE(
      store_->Write({"u1", ChunkName(ShardPrefix("k", 160, {first.term, second.generation}, 1), 0)}, "too"));
  const size_t before = store_->objects().size();
  const auto removed = catalog_.CollectOrphans(second);
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(*removed, 1u);
  EXPECT_EQ(store_->objects().size(), before - 1);
  EXPECT_EQ(store_->Bytes(ChunkName(ShardPrefix("k", 150, first, 0), 0)), nullptr);
}

TEST_F(CatalogTest, OrphansOfTheLastGenerationAreCollectedWhenNobodyWritesAnyMore) {
  const Fence fence = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, fence));
  const std::string torn = ChunkName(ShardPrefix("k", 150, fence, 0), 0);
  const std::string next = ChunkName(ShardPrefix("k", 150, {fence.term + 1, fence.generation + 1}, 0), 0);
  for (const std::string& name : {torn, next}) ASSERT_TRUE(store_->Write({"u1", name}, "torn"));
  EXPECT_EQ(*catalog_.CollectOrphans(fence), 0U);
  EXPECT_EQ(*catalog_.CollectOrphans(fence, Catalog::Writers::kNone), 1U);
  EXPECT_EQ(store_->Bytes(torn), nullptr);
  EXPECT_NE(store_->Bytes(next), nullptr);
  EXPECT_TRUE(catalog_.LoadManifest(100));
}

TEST_F(CatalogTest, ARemovalThatIsNotCompleteSaysSo) {
  const Fence fence = Start(catalog_);
  for (const uint64_t step : {100, 200}) ASSERT_TRUE(Save(catalog_, step, fence));
  store_->SetFault([](const std::string& operation, const std::string&) {
    return operation == "remove" ? Status(Error{Errc::kUnavailable, "no answer"}) : Status();
  });
  const auto dropped = catalog_.Drop([](const GangHead&) { return Result<std::vector<uint64_t>>({100}); });
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code, Errc::kUnavailable);
  EXPECT_THAT(dropped.error().message, HasSubstr("not all that was left is removed: no answer"));
  EXPECT_THAT(Steps(), ElementsAre(200));
}

TEST_F(CatalogTest, WhatACrashWhilePruningLeavesIsCollectedLater) {
  const Fence first = Start(catalog_);
  ASSERT_TRUE(Save(catalog_, 100, first, 1));
  store_->SetFault([](const std::string& operation, const std::string&) {
    return operation == "remove" ? Status(Error{Errc::kUnavailable, "musterd died here"}) : Status();
  });
  ASSERT_TRUE(Save(catalog_, 200, first, 1));
  store_->SetFault(nullptr);
  EXPECT_THAT(Steps(), ElementsAre(200));
  const Fence second{first.term, first.generation + 1};
  ASSERT_TRUE(catalog_.Advance(first, second, "record 2"));
  EXPECT_EQ(*catalog_.CollectOrphans(second), 2u * 3 + 1);
  EXPECT_TRUE(catalog_.LoadManifest(200));
}

TEST(CatalogInADirectory, SurvivesAReopen) {
  const TemporaryDirectory root;
  StoreOptions options;
  options.url = "dir:" + root.path();
  const Fence fence{1, 1};
  {
    Catalog catalog(OpenStore(options).value(), "u1", "k");
    ASSERT_TRUE(catalog.TakeOver("{\"json\": true}", "i"));
    ASSERT_TRUE(catalog.Advance({1, 0}, fence, "record"));
    ASSERT_TRUE(catalog.Commit(SampleManifest("k", 100, fence, 2), 2));
  }
  Catalog catalog(OpenStore(options).value(), "u1", "k");
  const auto head = catalog.Load();
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->latest, 100u);
  EXPECT_EQ(head->record, "record");
  EXPECT_TRUE(catalog.LoadManifest(100));
}

TEST_F(CatalogTest, AWriteWhoseAnswerWasLostIsFoundToHaveHappened) {
  const Fence fence = Start(catalog_);
  const Fence next{fence.term, fence.generation + 1};
  store_->LoseAnswers(1);
  int asked = 0;
  const auto go_on = [&](const Error& error) {
    EXPECT_EQ(error.code, Errc::kUnavailable);
    return ++asked < 10;
  };
  EXPECT_TRUE(catalog_.AdvanceForSure(fence, next, "record 2", go_on));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(catalog_.Load()->record, "record 2");
}

TEST_F(CatalogTest, AnAnswerThatWasLostDoesNotHideThatAnotherHasTakenOver) {
  const Fence fence = Start(catalog_);
  const Fence next{fence.term + 1, fence.generation};
  store_->LoseAnswers(1);
  // Another's record under the very fence that this writer wanted.
  const auto go_on = [&](const Error& /*error*/) {
    return catalog_copy_.Advance(next, next, "another's").ok();
  };
  EXPECT_EQ(catalog_.AdvanceForSure(fence, next, "mine", go_on).error().code, Errc::kConflict);
  EXPECT_EQ(catalog_.Load()->record, "another's");
}

// As the disk of a directory: there is room again later.
TEST_F(CatalogTest, AFullStoreIsAskedAgain) {
  const Fence fence = Start(catalog_);
  int refused = 0;
  store_->SetFault([&](const std::string& operation, const std::string& /*name*/) {
    if (operation != "update_head" || refused == 2) return Status();
    ++refused;
    return Status(Error{Errc::kExhausted, "full"});
  });
  EXPECT_TRUE(catalog_.AdvanceForSure(fence, fence, "record 2", [](const Error& /*error*/) { return true; }));
  EXPECT_EQ(catalog_.Load()->record, "record 2");
}

TEST_F(CatalogTest, AWriterThatGivesUpSaysThatTheOutcomeIsNotKnown) {
  const Fence fence = Start(catalog_);
  store_->SetFault([](const std::string& /*operation*/, const std::string& /*name*/) {
    return Status(Error{Errc::kUnavailable, "no answer"});
  });
  int asked = 0;
  const auto go_on = [&](const Error& /*error*/) { return ++asked < 3; };
  EXPECT_EQ(catalog_.AdvanceForSure(fence, fence, "record 2", go_on).error().code, Errc::kUnavailable);
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace muster
