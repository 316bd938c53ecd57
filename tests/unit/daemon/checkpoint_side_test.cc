// From the shards of a step to a checkpoint in the store, and what nodes and metrics hear of it.
#include "daemon/coordinator/checkpoint_side.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ceph/catalog/object_names.h"
#include "daemon/proto/shard_message.h"
#include "tests/support/loop_thread.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"
#include "tests/unit/daemon/gang_rig.h"
#include "tests/unit/daemon/ordered.h"

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint32_t kSavers = 2;

struct SavingParts {
  SavingParts(Loop& loop, const Config& config, const GangJob& job, const std::shared_ptr<Store>& store,
              const std::shared_ptr<Catalog>& catalog, CheckpointSide::Hooks hooks)
      : side(loop, config, job, store, catalog, core, std::move(hooks)),
        core({orders, orders, orders, side, orders}, Terms(0, {0, 1}, {}), true) {
    core.Take({1, 0}, {}, std::nullopt);
    core.Begin(gang::Rig::SettingsOf(kSavers, 1), nullptr, {}, {});
    side.Take({.fence = {1, 0}}, 0);
    core.Go();
    core.Lead();
    for (uint32_t node = 0; node < kSavers; ++node) {
      core.Registered(node, 0, std::nullopt);
      core.Feed(gang::NodeJoined{
          .node = node, .name = fmt::format("n{}", node), .members = {{.task = node, .local_id = 0}}});
    }
    orders.said.clear();
  }

  Ordered orders;
  CheckpointSide side;
  CoordinatorCore core;
};

// Two nodes with a member each, in generation 1, whose record is being written.
class CheckpointSideTest : public ::testing::Test {
 protected:
  CheckpointSideTest() {
    config_.keep_checkpoints = 2;
    job_.job_id = 12;
    job_.uid = 1;
    catalog_ = std::make_shared<Catalog>(store_, job_.Space(), job_.Key());
    EXPECT_TRUE(catalog_->TakeOver("record", "entry"));
    store_->SetFault([this](const std::string& operation, const std::string& /*name*/) -> Status {
      if (operation != "write" || !down_) return {};
      ++refused_;
      return Error{Errc::kUnavailable, "no answer"};
    });
    loop_.Do([&] {
      parts_ = std::make_unique<SavingParts>(
          loop_.loop(), config_, job_, store_, catalog_,
          CheckpointSide::Hooks{
              .tell = [this](v1::CoordinatorMessage message) { told_.push_back(std::move(message)); },
              .note = [this](const std::string& kind,
                             const std::string& text) { notes_.push_back(kind + ": " + text); }});
    });
  }
  ~CheckpointSideTest() override {
    loop_.Do([&] { parts_.reset(); });
  }

  // The record of generation 1 is in the store.
  void Recorded() {
    EXPECT_TRUE(catalog_->Advance({1, 0}, {1, 1}, "record"));
    loop_.Do([&] {
      parts_->side.order()->Recorded(1);
      parts_->core.RecordWritten(1, parts_->core.gang().state(), 0);
    });
  }
  void Save(uint64_t step, std::optional<uint32_t> write = std::nullopt) {
    loop_.Do([&] {
      for (Shard& shard : SampleManifest(job_.Key(), step, {1, 1}, kSavers).shards) {
        shard.prefix = ShardPrefix(job_.Key(), step, {1, 1}, shard.rank, write);
        v1::ShardWritten written;
        written.set_generation(1);
        written.set_step(step);
        PutShard(shard, written.mutable_shard());
        parts_->side.Take(written);
      }
    });
  }
  bool Committed(uint64_t step) {
    return loop_.Eventually([&] { return parts_->side.newest() && parts_->side.newest()->step == step; });
  }
  // Of each commit that was told: its step, how many shards have a WRITE, and its error.
  std::vector<std::string> Told() {
    return loop_.Do([&] {
      std::vector<std::string> told;
      for (const v1::CoordinatorMessage& message : std::exchange(told_, {})) {
        const v1::Committed& committed = message.committed();
        told.push_back(
            fmt::format("{} {} '{}'", committed.step(), committed.written_size(), committed.error()));
      }
      return told;
    });
  }
  std::optional<uint64_t> SavedIn(uint64_t step) {
    return loop_.Do([&] { return parts_->side.SavedIn(step); });
  }
  void Restored(uint32_t rank, uint64_t generation, bool memory, uint64_t from_partner) {
    v1::ShardRestored restored;
    restored.set_rank(rank);
    restored.set_generation(generation);
    restored.set_bytes(100);
    restored.set_from_memory(memory);
    restored.set_from_partner(from_partner);
    restored.set_elapsed_ns(2'000'000 + rank);
    loop_.Do([&] { parts_->side.Take(restored); });
  }
  std::vector<std::string> Notes() {
    return loop_.Do([&] { return notes_; });
  }

  Config config_;
  GangJob job_;
  std::atomic<bool> down_ = false;
  std::atomic<int> refused_ = 0;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::shared_ptr<Catalog> catalog_;
  std::vector<v1::CoordinatorMessage> told_;
  std::vector<std::string> notes_;
  LoopThread loop_;
  std::unique_ptr<SavingParts> parts_;
};

TEST_F(CheckpointSideTest, AStepIsCommittedBehindTheRecordOfItsGeneration) {
  Save(10);
  EXPECT_THAT(Told(), IsEmpty());
  Recorded();
  ASSERT_TRUE(Committed(10));
  EXPECT_THAT(Told(), ElementsAre("10 0 ''"));
  EXPECT_THAT(Notes(), ElementsAre("checkpoint: step 10 is committed, 5001 bytes"));
  EXPECT_EQ(catalog_->Load()->latest, 10U);
  EXPECT_EQ(SavedIn(10), 1U);
  EXPECT_THAT(loop_.Do([&] { return parts_->orders.said; }), Not(Contains("find successor")));
}

TEST_F(CheckpointSideTest, ACommitThatTheStoreDoesNotTakeNowIsMadeAgain) {
  Recorded();
  down_ = true;
  Save(10);
  ASSERT_TRUE(loop_.Eventually([&] { return refused_ > 0; }));
  EXPECT_THAT(Told(), IsEmpty());
  down_ = false;
  // The answer comes at a time of its own, and the pause counts from then.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!SavedIn(10) && std::chrono::steady_clock::now() < end) loop_.Move(std::chrono::seconds(1));
  EXPECT_THAT(Notes(), Contains("checkpoint: step 10 is committed, 5001 bytes"));
  EXPECT_THAT(Told(), ElementsAre("10 0 ''"));
}

TEST_F(CheckpointSideTest, AFailedShardFailsItsStep) {
  Recorded();
  loop_.Do([&] {
    v1::ShardWritten failed;
    failed.set_generation(1);
    failed.set_step(10);
    failed.mutable_shard()->set_rank(1);
    failed.set_error("no room");
    parts_->side.Take(failed);
  });
  EXPECT_THAT(Told(), ElementsAre("10 0 'no room'"));
  Save(11);
  EXPECT_TRUE(Committed(11)) << "the next step is another save";
}

TEST_F(CheckpointSideTest, AFailureThatANodeWasToldOfBeforeFailsTheStepHereToo) {
  Recorded();
  loop_.Do([&] {
    v1::Register registration;
    registration.set_failed_generation(1);
    v1::FailedSave* failed = registration.add_failed_saves();
    failed->set_step(10);
    failed->set_error("no room");
    parts_->side.TakeFailures(registration);
  });
  Save(10);
  EXPECT_THAT(Told(), ElementsAre("10 0 'no room'", "10 0 'no room'")) << "each shard's node asks";
}

TEST_F(CheckpointSideTest, ShardsThatWereWrittenOnceMoreAreNamedUntilTheNextGeneration) {
  Recorded();
  Save(10, 7);
  ASSERT_TRUE(Committed(10));
  EXPECT_THAT(Told(), ElementsAre("10 2 ''"));
  const PendingSaves::Tell again{.generation = 1, .step = 10, .error = ""};
  loop_.Do([&] {
    parts_->side.Do(again);
    parts_->side.BeginGeneration();
    parts_->side.Do(again);
  });
  EXPECT_THAT(Told(), ElementsAre("10 2 ''", "10 0 ''"));
}

TEST_F(CheckpointSideTest, WhoSavedTheNewestStepsIsRemembered) {
  Recorded();
  for (const uint64_t step : {10, 11, 12, 13}) {
    Save(step);
    ASSERT_TRUE(Committed(step));
  }
  EXPECT_EQ(SavedIn(10), std::nullopt);
  for (const uint64_t step : {11, 12, 13}) EXPECT_EQ(SavedIn(step), 1U);
}

TEST_F(CheckpointSideTest, TheNewestCheckpointIsTheGangsOwn) {
  GangHead head{.fence = {1, 0}, .latest = 7};
  head.checkpoints.push_back({.step = 6, .fence = {1, 4}, .bytes = 10, .created_ns = 1'000});
  head.checkpoints.push_back({.step = 7, .fence = {1, 5}, .bytes = 20, .created_ns = 2'000});
  loop_.Do([&] {
    parts_->side.Take(head, 2'001);
    EXPECT_FALSE(parts_->side.newest()) << "an earlier gang of the name has saved it";
    EXPECT_EQ(parts_->side.SavedIn(7), 5U);
    parts_->side.Take(head, 2'000);
    ASSERT_TRUE(parts_->side.newest());
    EXPECT_EQ(parts_->side.newest()->step, 7U);
    EXPECT_EQ(parts_->side.newest()->bytes, 20U);
  });
}

TEST_F(CheckpointSideTest, WhereAGenerationHasItsStateFromIsToldOnceAllMembersHaveIt) {
  Recorded();
  Restored(0, 1, true, 0);
  Restored(0, 1, true, 0);
  Restored(1, 2, false, 0);
  EXPECT_THAT(Notes(), IsEmpty());
  Restored(1, 1, false, 100);
  EXPECT_THAT(Notes(),
              ElementsAre("restored: generation 1 has its state: 1 shards from memory, 1 from partners, "
                          "0 from the store; 200 bytes (100, 100 and 0), the slowest 2.0 ms"));
}

TEST_F(CheckpointSideTest, TheEndComesBehindTheCommitsAndTakesNoMoreShards) {
  Recorded();
  Save(10);
  std::promise<std::optional<uint64_t>> latest;
  const auto end =
      loop_.Do([&] { return parts_->side.AtTheEnd([&] { latest.set_value(catalog_->Load()->latest); }); });
  end();
  EXPECT_EQ(latest.get_future().get(), 10U);
  ASSERT_TRUE(Committed(10));
  Told();
  Save(11);
  EXPECT_FALSE(loop_.Do([&] { return parts_->core.saves().Committing(1); }));
  EXPECT_EQ(catalog_->Load()->latest, 10U);
}

}  // namespace
}  // namespace muster
