// Pins, retention and deletion, beside commits that go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/checkpoint_entry.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Keeping : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(catalog_.TakeOver("record", "entry"));
    ASSERT_TRUE(catalog_.Advance({1, 0}, fence_, "record"));
  }

  // Writes the objects that the manifest names itself, then commits it.
  Status Save(Catalog& catalog, const Manifest& manifest, const Retention& retention = 2,
              std::vector<CheckpointInfo>* gone = nullptr) {
    for (const Shard& shard : manifest.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        if (shard.PrefixOf(i) != shard.prefix) continue;
        EXPECT_TRUE(store_->Write({"u1", shard.ObjectOf(i)}, "chunk"));
      }
    }
    const auto committed = catalog.Commit(manifest, retention, gone);
    return committed ? Status() : Status(committed.error());
  }
  Status Save(uint64_t step, const Retention& retention = 2) {
    return Save(catalog_, SampleManifest("k", step, fence_, 2), retention);
  }
  // One whose chunks are all another's, but for the first of each shard.
  Manifest Sharing(uint64_t step, const Manifest& with) {
    Manifest manifest = SampleManifest("k", step, fence_, 2);
    for (Shard& shard : manifest.shards) {
      for (size_t i = 1; i < shard.chunks.size(); ++i)
        shard.AddElsewhere(i, with.shards[shard.rank].PrefixOf(i));
    }
    return manifest;
  }
  Manifest Sharing(uint64_t step, uint64_t with) { return Sharing(step, *catalog_.LoadManifest(with)); }

  std::vector<uint64_t> Steps() {
    std::vector<uint64_t> steps;
    const auto head = catalog_.Load();
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
  Result<std::vector<uint64_t>> Drop(Catalog& catalog, std::vector<uint64_t> steps) {
    return catalog.Drop([&](const GangHead&) -> Result<std::vector<uint64_t>> { return steps; });
  }
  // Every listed checkpoint has all of its objects.
  void ExpectWhole() {
    const auto head = catalog_.Load();
    for (const CheckpointInfo& info : head->checkpoints) {
      const auto manifest = catalog_.LoadManifest(info.step);
      ASSERT_TRUE(manifest) << manifest.error().message;
      for (const Shard& shard : manifest->shards) {
        for (size_t i = 0; i < shard.chunks.size(); ++i)
          EXPECT_NE(store_->Bytes(shard.ObjectOf(i)), nullptr) << info.step << " lacks " << shard.ObjectOf(i);
      }
    }
  }

  const Fence fence_{1, 1};
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  Catalog catalog_{store_, "u1", "k"};
  Catalog other_{store_, "u1", "k"};  // of another process
};

TEST_F(Keeping, APinnedCheckpointOutlivesRetention) {
  ASSERT_TRUE(Save(1));
  ASSERT_TRUE(other_.Pin(1, "first"));
  for (uint64_t step = 2; step <= 6; ++step) ASSERT_TRUE(Save(step));
  EXPECT_THAT(Steps(), ElementsAre(1, 5, 6));
  EXPECT_EQ(catalog_.Load()->checkpoints[0].pinned, "first");
  ExpectWhole();
  ASSERT_TRUE(other_.Pin(1, ""));
  ASSERT_TRUE(Save(7));
  EXPECT_THAT(Steps(), ElementsAre(6, 7));
  for (const auto& [name, data] : store_->objects()) EXPECT_FALSE(name.starts_with("data/k/1.")) << name;
}

TEST_F(Keeping, MultiplesOutliveRetention) {
  for (uint64_t step = 1; step <= 7; ++step) ASSERT_TRUE(Save(step, {1, 3}));
  EXPECT_THAT(Steps(), ElementsAre(3, 6, 7));
  ExpectWhole();
}

TEST_F(Keeping, ABadObjectMarksAllThatShareItAtOnce) {
  ASSERT_TRUE(Save(1, 9));
  ASSERT_TRUE(Save(2, 9));
  ASSERT_TRUE(Save(catalog_, Sharing(3, 2), 9));
  ASSERT_TRUE(Save(catalog_, Sharing(4, 3), 9));
  ASSERT_TRUE(Save(5, 9));
  const auto states = [&] {
    std::string text;
    const auto head = catalog_.Load();
    for (const auto& checkpoint : head->checkpoints) text += checkpoint.good ? "good " : "bad ";
    return text;
  };
  // Asked of another process's catalog, which has not seen any of them being made.
  ASSERT_TRUE(
      other_.MarkBad(fence_, 4, ManifestOf(4), "object u1/data/k/4.1.1/0.0 in memory has digest 1, not 2"));
  EXPECT_EQ(states(), "good good good bad good ");
  ASSERT_TRUE(other_.MarkBad(fence_, 3, ManifestOf(3),
                             "an object of rank 1 is missing: cannot read u1/data/k/2.1.1/1.2: none"));
  EXPECT_EQ(states(), "good bad bad bad good ");
  const auto head = catalog_.Load();
  EXPECT_THAT(head->checkpoints[1].reason, testing::StartsWith("as the checkpoint of step 3: an object of"));
  EXPECT_THAT(head->checkpoints[3].reason, HasSubstr("has digest")) << "its own reason stays";
  EXPECT_EQ(head->latest, 5u);
  // A reason that names no object, or another gang's, is about the one alone.
  ASSERT_TRUE(other_.MarkBad(fence_, 5, ManifestOf(5),
                             "its manifest has another digest; data/other/1.1.1/0.0, data/k/x"));
  EXPECT_EQ(states(), "good bad bad bad bad ");
  EXPECT_EQ(catalog_.Load()->latest, 1u);
}

// As by who was still reading the one before.
TEST_F(Keeping, ACheckpointThatHasBeenSavedAnewIsNotMarkedBadForTheOneBefore) {
  ASSERT_TRUE(Save(1));
  const std::string before = ManifestOf(1);
  const Fence next{1, 2};
  ASSERT_TRUE(catalog_.Advance(fence_, next, "record"));
  ASSERT_TRUE(Save(catalog_, SampleManifest("k", 1, next, 2)));
  EXPECT_EQ(other_.MarkBad(next, 1, before, "an object is missing").error().code, Errc::kNotFound);
  EXPECT_EQ(other_.MarkBad(next, 1, "", "its entry does not read").error().code, Errc::kNotFound);
  EXPECT_EQ(catalog_.Load()->latest, 1U);
  ASSERT_TRUE(other_.MarkBad(next, 1, ManifestOf(1), "an object is missing"));
  EXPECT_FALSE(catalog_.Load()->latest);
}

TEST_F(Keeping, APinStaysWhenItsCheckpointTurnsOutBadAndWhenTheStepIsSavedAgain) {
  ASSERT_TRUE(Save(1));
  ASSERT_TRUE(Save(2));
  ASSERT_TRUE(catalog_.Pin(1, "first"));
  ASSERT_TRUE(catalog_.MarkBad(fence_, 1, ManifestOf(1), "a bit"));
  EXPECT_EQ(catalog_.Load()->checkpoints[0].pinned, "first");
  ASSERT_TRUE(catalog_.Advance(fence_, {1, 2}, "record"));
  ASSERT_TRUE(Save(catalog_, SampleManifest("k", 1, {1, 2}, 2)));
  EXPECT_TRUE(catalog_.Load()->checkpoints[0].good);
  EXPECT_EQ(catalog_.Load()->checkpoints[0].pinned, "first");
}

TEST_F(Keeping, APinsNameIsOneCheckpoints) {
  ASSERT_TRUE(Save(1));
  ASSERT_TRUE(Save(2));
  ASSERT_TRUE(catalog_.Pin(1, "best"));
  ASSERT_TRUE(catalog_.Pin(1, "best"));
  const Status again = catalog_.Pin(2, "best");
  EXPECT_EQ(again.error().code, Errc::kConflict);
  EXPECT_THAT(again.error().message, HasSubstr("step 1 is pinned as 'best'"));
  ASSERT_TRUE(catalog_.Pin(1, "better"));
  ASSERT_TRUE(catalog_.Pin(2, "best"));
  EXPECT_EQ(catalog_.Pin(9, "x").error().code, Errc::kNotFound);
  store_->heads()["gang/k"].entries["checkpoint/1"] = "scribble";
  EXPECT_EQ(catalog_.Pin(1, "x").error().code, Errc::kCorrupt);
}

TEST_F(Keeping, AnEntryOfAFirstVersionHasNoPinAndOneWithAStrangePinIsCorrupt) {
  CheckpointInfo info;
  info.step = 3;
  info.manifest = ManifestName("k", 3, info.fence);
  const std::string plain = EncodeCheckpointEntry(info);
  EXPECT_EQ(plain.find("pinned"), std::string::npos);
  EXPECT_EQ(DecodeCheckpointEntry("k", 3, plain)->pinned, "");
  const std::string strange = plain.substr(0, plain.size() - 1) + R"(,"pinned":7})";
  EXPECT_EQ(DecodeCheckpointEntry("k", 3, strange).error().code, Errc::kCorrupt);
}

TEST_F(Keeping, WhatIsDroppedIsGoneWithItsObjectsAndLatestFollows) {
  for (const uint64_t step : {1, 2, 3}) ASSERT_TRUE(Save(step, 9));
  EXPECT_THAT(*Drop(other_, {2}), ElementsAre(2));
  EXPECT_THAT(Steps(), ElementsAre(1, 3));
  EXPECT_THAT(*Drop(other_, {3}), ElementsAre(3));
  EXPECT_EQ(catalog_.Load()->latest, 1U);
  EXPECT_EQ(store_->heads()["gang/k"].entries["latest"], "1");
  ExpectWhole();
  EXPECT_THAT(*Drop(other_, {1}), ElementsAre(1));
  EXPECT_TRUE(store_->objects().empty());
  EXPECT_FALSE(store_->heads()["gang/k"].entries.contains("latest"));
}

TEST_F(Keeping, TheChoosersErrorIsTheOutcomeAndNothingChanges) {
  ASSERT_TRUE(Save(1));
  const auto before = store_->heads();
  const auto dropped = catalog_.Drop([](const GangHead& head) -> Result<std::vector<uint64_t>> {
    return Error{Errc::kConflict, std::to_string(head.checkpoints.size()) + " are needed"};
  });
  EXPECT_EQ(dropped.error().message, "1 are needed");
  EXPECT_EQ(store_->heads()["gang/k"].entries, before.at("gang/k").entries);
  ExpectWhole();
}

TEST_F(Keeping, SharedChunksOutliveADroppedCheckpoint) {
  ASSERT_TRUE(Save(1, 9));
  ASSERT_TRUE(Save(catalog_, Sharing(2, 1), 9));
  ASSERT_TRUE(Save(3, 9));
  ASSERT_TRUE(Drop(other_, {1}));
  ExpectWhole();
  EXPECT_EQ(store_->Bytes(ManifestName("k", 1, fence_)), nullptr);
  EXPECT_EQ(store_->Bytes(ChunkName(ShardPrefix("k", 1, fence_, 0), 0)), nullptr)
      << "nobody shares the first chunk";
  ASSERT_TRUE(Drop(other_, {2}));
  for (const auto& [name, data] : store_->objects()) EXPECT_TRUE(name.starts_with("data/k/3.")) << name;
}

TEST_F(Keeping, WhatACommitLeavesToLaterIsThereUntilThen) {
  ASSERT_TRUE(Save(1));
  ASSERT_TRUE(Save(catalog_, Sharing(2, 1)));
  std::vector<CheckpointInfo> gone;
  ASSERT_TRUE(Save(catalog_, Sharing(3, 2), 2, &gone));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
  ASSERT_EQ(gone.size(), 1U);
  EXPECT_EQ(gone[0].step, 1U);
  const std::string own = ChunkName(ShardPrefix("k", 1, fence_, 0), 0);
  const std::string shared = ChunkName(ShardPrefix("k", 1, fence_, 0), 1);
  EXPECT_NE(store_->Bytes(own), nullptr);
  EXPECT_NE(store_->Bytes(ManifestName("k", 1, fence_)), nullptr);
  // Meanwhile a newer one is committed, which shares with those that are listed.
  std::vector<CheckpointInfo> more;
  ASSERT_TRUE(Save(catalog_, Sharing(4, 3), 2, &more));
  EXPECT_TRUE(catalog_.RemoveObjects(gone));
  EXPECT_EQ(store_->Bytes(own), nullptr);
  EXPECT_EQ(store_->Bytes(ManifestName("k", 1, fence_)), nullptr);
  EXPECT_NE(store_->Bytes(shared), nullptr);
  EXPECT_TRUE(catalog_.RemoveObjects(more));
  ExpectWhole();
}

// As while daemons are upgraded one by one: what this one cannot read is neither damaged nor without objects.
TEST_F(Keeping, WhatANewerVersionHasCommittedIsLeftAlone) {
  ASSERT_TRUE(Save(1, 9));
  ASSERT_TRUE(Save(catalog_, Sharing(2, 1), 9));
  ASSERT_TRUE(Save(catalog_, Sharing(3, 1), 9));
  CheckpointInfo newer = catalog_.Load()->checkpoints[1];
  std::string text = *store_->Bytes(newer.manifest);
  const std::string version = "\"version\":2";
  ASSERT_NE(text.find(version), std::string::npos);
  text.replace(text.find(version), version.size(), "\"version\":99");
  ASSERT_TRUE(store_->Write({"u1", newer.manifest}, text));
  newer.manifest_digest = DigestOf(text);
  HeadUpdate update;
  update.expect_fence = update.new_fence = fence_.Encode();
  update.set["checkpoint/2"] = EncodeCheckpointEntry(newer);
  ASSERT_TRUE(store_->UpdateHead({"u1", "gang/k"}, update));

  EXPECT_EQ(other_.LoadManifest(2).error().code, Errc::kInvalid);
  EXPECT_THAT(other_.LoadManifest(2).error().message, HasSubstr("version 99"));
  // Nothing goes while nobody here knows what it consists of, also when the list gets shorter.
  const auto before = store_->objects();
  const CheckpointInfo first = other_.Load()->checkpoints[0];
  EXPECT_EQ(Drop(other_, {1}).error().code, Errc::kInvalid);
  EXPECT_EQ(other_.RemoveObjects({first}).error().code, Errc::kInvalid);
  EXPECT_EQ(other_.CollectOrphans(fence_).error().code, Errc::kInvalid);
  EXPECT_EQ(store_->objects(), before);
  // Commits go on, also those that share.
  EXPECT_TRUE(Save(other_, Sharing(4, *other_.LoadManifest(3)), 9));
  EXPECT_THAT(Steps(), ElementsAre(2, 3, 4));
  // Once it is not listed it holds up nothing.
  const CheckpointInfo second = other_.Load()->checkpoints[0];
  ASSERT_TRUE(Drop(other_, {2}));
  EXPECT_TRUE(other_.RemoveObjects({first, second}));
  ExpectWhole();
}

// A commit that was prepared before somebody else's change is prepared again.
TEST_F(Keeping, ACommitSeesAPinThatCameBetween) {
  ASSERT_TRUE(Save(1));
  ASSERT_TRUE(Save(2));
  bool done = false;
  store_->SetFault([&](const std::string& operation, const std::string& name) -> Status {
    if (operation != "update_head" || name != "gang/k" || std::exchange(done, true)) return {};
    return other_.Pin(1, "kept");
  });
  ASSERT_TRUE(Save(3));
  EXPECT_THAT(Steps(), ElementsAre(1, 2, 3));
  EXPECT_EQ(catalog_.Load()->checkpoints[0].pinned, "kept");
  ExpectWhole();
}

TEST_F(Keeping, ACommitDoesNotShareWhatIsDroppedMeanwhile) {
  ASSERT_TRUE(Save(1, 9));
  ASSERT_TRUE(Save(2, 9));
  ASSERT_TRUE(catalog_.Advance(fence_, {1, 2}, "record"));
  bool done = false;
  store_->SetFault([&](const std::string& operation, const std::string& name) -> Status {
    if (operation != "update_head" || name != "gang/k" || std::exchange(done, true)) return {};
    return Drop(other_, {1}) ? Status() : Error{Errc::kInternal, "not dropped"};
  });
  Manifest manifest = SampleManifest("k", 3, {1, 2}, 2);
  manifest.shards[0].AddElsewhere(1, ShardPrefix("k", 1, fence_, 0));
  EXPECT_EQ(Save(catalog_, manifest, 9).error().code, Errc::kCorrupt);
  EXPECT_THAT(Steps(), ElementsAre(2));
  EXPECT_EQ(store_->Bytes(ManifestName("k", 3, {1, 2})), nullptr);
  ExpectWhole();
}

// The answer to the first call did not come; before the second one another coordinator has taken over.
TEST_F(Keeping, ACommitThatWasCarriedOutLateStaysWhenItsCoordinatorHasBeenReplaced) {
  ASSERT_TRUE(Save(1));
  const Manifest manifest = SampleManifest("k", 2, fence_, 2);
  ASSERT_TRUE(Save(other_, manifest));
  ASSERT_TRUE(other_.Advance(fence_, {fence_.term + 1, fence_.generation}, "record"));
  const auto committed = catalog_.Commit(manifest, 2);
  EXPECT_TRUE(committed) << committed.error().message;
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  ExpectWhole();
}

TEST_F(Keeping, ASaveThatNewerOnesHaveOvertakenSharesNothingThatHasGone) {
  ASSERT_TRUE(Save(1));
  const Manifest slow = Sharing(2, 1);
  for (const uint64_t step : {3, 4, 5}) ASSERT_TRUE(Save(step));
  EXPECT_EQ(Save(catalog_, slow).error().code, Errc::kCorrupt);
  EXPECT_THAT(Steps(), ElementsAre(4, 5));
  ExpectWhole();
}

TEST_F(Keeping, AnAnswerThatWasLostDoesNotMakeAChangeAnError) {
  ASSERT_TRUE(Save(1, 9));
  ASSERT_TRUE(Save(2, 9));
  store_->LoseAnswers(1);
  EXPECT_TRUE(catalog_.Pin(1, "kept"));
  store_->LoseAnswers(1);
  EXPECT_THAT(*Drop(catalog_, {2}), ElementsAre(2));
  EXPECT_THAT(Steps(), ElementsAre(1));
  ExpectWhole();
}

// As a coordinator's that has taken over, and knows no manifests yet: with large ones that takes minutes.
TEST_F(Keeping, TheRecordIsWrittenWhileARemovalOrACommitReadsManifests) {
  std::vector<CheckpointInfo> gone;
  for (uint64_t step = 1; step <= 3; ++step)
    ASSERT_TRUE(Save(catalog_, SampleManifest("k", step, fence_, 2), 2, &gone));
  ASSERT_EQ(gone.size(), 1U);
  const Manifest next = Sharing(4, 3);
  for (const bool removal : {true, false}) {
    Catalog successor(store_, "u1", "k");
    std::promise<void> reached;
    std::promise<void> go;
    std::atomic<bool> first = true;
    store_->SetFault([&](const std::string& operation, const std::string& name) -> Status {
      if (operation != "read" || !name.ends_with("/manifest") || !first.exchange(false)) return {};
      reached.set_value();
      go.get_future().wait();
      return {};
    });
    auto reads = std::async(std::launch::async,
                            [&] { return removal ? successor.RemoveObjects(gone) : Save(successor, next); });
    reached.get_future().wait();
    auto written = std::async(std::launch::async, [&] { return successor.Advance(fence_, fence_, "newer"); });
    EXPECT_EQ(written.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    go.set_value();
    EXPECT_TRUE(written.get());
    EXPECT_TRUE(reads.get());
    store_->SetFault({});
  }
  EXPECT_EQ(catalog_.Load()->record, "newer");
  EXPECT_THAT(Steps(), ElementsAre(3, 4));
}

TEST_F(Keeping, CommitsPinsAndDropsAtOnceLeaveEveryListedCheckpointWhole) {
  std::atomic<bool> stop{false};
  std::thread pins([&] {
    Catalog mine(store_, "u1", "k");
    for (int i = 0; !stop; ++i) {
      const auto head = mine.Load();
      if (!head || head->checkpoints.empty()) continue;
      (void)mine.Pin(head->checkpoints[i % head->checkpoints.size()].step,
                     i % 3 == 0 ? "" : "p" + std::to_string(i % 2));
    }
  });
  std::thread drops([&] {
    Catalog mine(store_, "u1", "k");
    while (!stop) {
      (void)mine.Drop([](const GangHead& head) -> Result<std::vector<uint64_t>> {
        return StepsToLeave(head.checkpoints, kNeededByGang);
      });
    }
  });
  // As a coordinator has it: what leaves goes on a thread of its own.
  std::mutex mutex;
  std::vector<CheckpointInfo> left;
  std::thread removals([&] {
    while (!stop) {
      std::vector<CheckpointInfo> now;
      {
        const std::lock_guard lock(mutex);
        now.swap(left);
      }
      EXPECT_TRUE(catalog_.RemoveObjects(now));
    }
  });
  int committed = 0;
  for (uint64_t step = 1; step <= 300; ++step) {
    const auto head = catalog_.Load();
    const auto base = step > 1 ? catalog_.LoadManifest(*head->latest) : Result<Manifest>(Error{});
    std::vector<CheckpointInfo> gone;
    const Status saved =
        Save(catalog_, base ? Sharing(step, *base) : SampleManifest("k", step, fence_, 2), 4, &gone);
    {
      const std::lock_guard lock(mutex);
      left.insert(left.end(), gone.begin(), gone.end());
    }
    // Others may be faster for long, but nothing else goes wrong.
    EXPECT_TRUE(saved || saved.error().code == Errc::kUnavailable) << saved.error().message;
    if (saved) ++committed;
  }
  stop = true;
  pins.join();
  drops.join();
  removals.join();
  EXPECT_GT(committed, 100);
  ExpectWhole();
}

}  // namespace
}  // namespace muster
