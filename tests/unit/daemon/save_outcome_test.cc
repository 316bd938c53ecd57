// How saves end, and who is told: through two musterds, one of which may be restarted meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "client/muster.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/test_member.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class SaveOutcome : public TwoDaemons {
 protected:
  void SetUp() override {
    TwoDaemons::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    first_ = std::make_unique<TestMember>(daemons_[0]->socket(), StepHello(31, 0, 2), "n[1-2]");
    second_ = std::make_unique<TestMember>(daemons_[1]->socket(), StepHello(31, 1, 2), "n[1-2]");
    first_->Run();
    second_->Run();
  }
  // The first member's musterd: the coordinator is the other one.
  void RestartTheFirst(const EngineOptions& engine = {}) {
    daemons_[0].reset();
    StartDaemon(0, engine);
    first_->Return();
  }
  // Both at once: the coordinator is another one then, and neither daemon knows more than what it has kept.
  void RestartBoth() {
    daemons_[0].reset();
    daemons_[1].reset();
    StartDaemon(0);
    StartDaemon(1);
    first_->Rejoin();
    second_->Rejoin();
    first_->GreetAgain();
    second_->GreetAgain();
  }
  void FailOfTheFirst(uint64_t step) {
    first_->Save(step, "part zero", 1);
    first_->ExpectDurable(MUSTER_E_INVALID);
    first_->ExpectTold(MUSTER_E_STORE);
    second_->ExpectTold(MUSTER_E_STORE);
  }
  std::shared_ptr<Store> OpenGangsStore() {
    return OpenStore({.url = "dir:" + directory_.path() + "/store"}).value();
  }
  void Commit(uint64_t step) {
    first_->Save(step, "part zero");
    second_->Save(step, "part one");
    first_->ExpectCommitted();
    second_->ExpectCommitted();
  }

  std::unique_ptr<TestMember> first_;
  std::unique_ptr<TestMember> second_;
};

TEST_F(SaveOutcome, WhatPrometheusIsToldOfAGangTheNextCoordinatorKnowsToo) {
  EXPECT_FALSE(Told(31).checkpoint);
  const double began = static_cast<double>(RealtimeNs()) / 1e9;
  Commit(7);
  first_->Die();
  first_->ExpectStop();
  second_->ExpectStop();
  first_->Run();
  second_->Run();
  const GangMetrics before = Told(31);
  ASSERT_TRUE(before.checkpoint);
  EXPECT_TRUE(before.checkpoint->stall_seconds && before.checkpoint->drain_seconds);
  RestartBoth();
  const GangMetrics after = Told(31);
  EXPECT_EQ(after.generation, 2U);
  EXPECT_EQ(after.restarts, before.restarts);
  EXPECT_EQ(after.restarts.at("infrastructure"), 1U);
  EXPECT_EQ(after.user_faults, before.user_faults);
  ASSERT_TRUE(after.checkpoint);
  EXPECT_EQ(after.checkpoint->step, 7U);
  EXPECT_EQ(after.checkpoint->bytes, before.checkpoint->bytes);
  EXPECT_GE(after.checkpoint->at, began) << "when the commit began";
  EXPECT_LE(after.checkpoint->at, before.checkpoint->at) << "when it was over";
  EXPECT_FALSE(after.checkpoint->stall_seconds || after.checkpoint->drain_seconds)
      << "nobody knows how long it took";
}

// Else it would wait for the others for ever.
TEST_F(SaveOutcome, FromTheOrderToStopOnNoSaveIsTaken) {
  Commit(1);
  first_->Die();
  second_->ExpectStopOrder();
  second_->Save(2, "last words");
  second_->ExpectDurable(MUSTER_E_DENIED);
}

TEST_F(SaveOutcome, AMemberWhoseShardComesAfterAnothersSaveHasFailedIsTold) {
  first_->Save(10, "part zero", 1);
  first_->ExpectDurable(MUSTER_E_INVALID);
  EXPECT_THAT(first_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 10 that were announced"));
  second_->ExpectTold(MUSTER_E_STORE);
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(second_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 10 that were announced"));
  first_->ExpectTold(MUSTER_E_STORE);
  // For good.
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  first_->ExpectTold(MUSTER_E_STORE);
  second_->ExpectTold(MUSTER_E_STORE);
  Commit(11);
}

TEST_F(SaveOutcome, AMemberWhoseMusterdWasRestartedIsToldOfACommit) {
  Commit(10);
  RestartTheFirst();
  first_->AskOutcome(10);
  first_->ExpectTold(MUSTER_OK);
  second_->ExpectTold(MUSTER_OK);  // all are told again
  Commit(11);
}

TEST_F(SaveOutcome, AMemberMayAskWhetherThereIsMemoryForASave) {
  EXPECT_EQ(first_->AskMemory(1 << 20), "");
  EXPECT_THAT(first_->AskMemory(uint64_t{1} << 60), HasSubstr("1099511627776 MiB more are needed"));
  EXPECT_EQ(second_->AskMemory(1 << 20), "");
  Commit(10);
}

TEST_F(SaveOutcome, AShardThatARestartedMusterdHadReportedStillCounts) {
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  Commit(8);  // reports come in order: that of 10 is there
  RestartTheFirst();
  first_->AskOutcome(10);
  Commit(9);  // the question has come, and has failed nothing
  second_->Save(10, "part one");
  second_->ExpectCommitted();
  first_->ExpectTold(MUSTER_OK);
}

TEST_F(SaveOutcome, AShardThatWasLostWithItsMusterdFailsTheSaveForAll) {
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  RestartTheFirst();
  first_->AskOutcome(10);
  for (TestMember* member : {first_.get(), second_.get()})
    EXPECT_THAT(member->ExpectTold(MUSTER_E_STORE), HasSubstr("musterd on n1 was restarted"));
  first_->AskOutcome(10);
  for (TestMember* member : {first_.get(), second_.get()})
    EXPECT_THAT(member->ExpectTold(MUSTER_E_STORE), HasSubstr("musterd on n1 was restarted"));
  Commit(11);
}

TEST_F(SaveOutcome, AFailureThatWasMissedInARestartIsToldToWhoSavesAgain) {
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  Commit(11);  // reports come in order: that of 10 is there
  second_->Save(10, "part one", 1);
  second_->ExpectDurable(MUSTER_E_INVALID);
  second_->ExpectTold(MUSTER_E_STORE);
  first_->ExpectTold(MUSTER_E_STORE);
  RestartTheFirst();
  first_->Save(10, "part zero");  // as one that was not told
  first_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(first_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 9 that were announced"));
}

// The agents tell the next coordinator.
TEST_F(SaveOutcome, AFailureOutlivesTheCoordinatorThatHasToldOfIt) {
  FailOfTheFirst(10);
  daemons_[1].reset();
  StartDaemon(1);
  second_->Return();
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(second_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 10 that were announced"));
  first_->ExpectTold(MUSTER_E_STORE);
  Commit(11);
}

TEST_F(SaveOutcome, AFailureOutlivesAllMusterds) {
  FailOfTheFirst(10);
  RestartBoth();
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(second_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 10 that were announced"));
  first_->ExpectTold(MUSTER_E_STORE);
  Commit(11);
}

// What was committed meanwhile stays as it is, though its musterd writes otherwise now, and it is what all go on from.
TEST_F(SaveOutcome, AShardThatComesAgainIsNotTheCommittedOne) {
  Commit(10);
  EngineOptions other;
  other.chunk_bytes = 4;
  RestartTheFirst(other);
  first_->Save(10, "part zero");  // as one that was not told
  first_->ExpectCommitted();
  second_->ExpectTold(MUSTER_OK);  // all are told again
  EXPECT_EQ(second_->ReadRange(10, 0, 0, 9), "part zero");
  // The next generation's saves share with what the checkpoint has, not with what was written again.
  first_->Die();
  first_->ExpectStop();
  second_->ExpectStop();
  first_->Run();
  second_->Run();
  EXPECT_EQ(first_->Restore(0), "part zero");
  EXPECT_EQ(second_->Restore(1), "part one");
  Commit(11);
  EXPECT_EQ(second_->ReadRange(11, 0, 0, 9), "part zero");
}

// A program that saves a step twice gets back what was committed, which the others go on from, though its node has the other
// one in memory.
TEST_F(SaveOutcome, WhatWasCommittedIsRestoredAndNotWhatCameAfterwards) {
  Commit(10);
  RestartTheFirst();
  first_->Save(10, "something");
  first_->ExpectCommitted();
  first_->Die();
  first_->ExpectStop();
  second_->ExpectStop();
  first_->Run();
  EXPECT_EQ(first_->Restore(0), "part zero");
}

// A shard that is durable serves, though the one that came after its musterd's restart does not.
TEST_F(SaveOutcome, AShardThatFailsWhenItComesAgainDoesNotFailTheSave) {
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  Commit(8);  // reports come in order: that of 10 is there
  RestartTheFirst();
  first_->Save(10, "part zero", 1);
  first_->ExpectDurable(MUSTER_E_INVALID);
  Commit(9);
  second_->Save(10, "part one");
  second_->ExpectCommitted();
  first_->ExpectTold(MUSTER_OK);
}

// As one that was busy, and does not wait.
TEST_F(SaveOutcome, ASaveThatNotAllMembersMakeFailsOnceTwoNewerOnesAreCommitted) {
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  Commit(11);
  Commit(12);
  for (TestMember* member : {first_.get(), second_.get()})
    EXPECT_THAT(member->ExpectTold(MUSTER_E_STORE), HasSubstr("two newer checkpoints are committed"));
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(first_->ExpectTold(MUSTER_E_STORE), HasSubstr("two newer checkpoints are committed"));
}

// The program's own question: the gang is not sent back for it.
TEST_F(SaveOutcome, WhoRestoresAStepThatIsNotThereIsToldAndGoesOn) {
  Commit(10);
  for (const uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(first_->Restore(rank, 99), HasSubstr(std::to_string(MUSTER_E_NOT_FOUND) + ": "));
    EXPECT_THAT(first_->rest(), HasSubstr("there is no checkpoint 99"));
  }
  Commit(11);
  EXPECT_TRUE(Catalog(OpenGangsStore(), "u1000", "name-elastic").Load()->checkpoints.front().good);
}

// Nobody comes after a gang's last generation who would remove it.
TEST_F(SaveOutcome, WhatIsNotCommittedWhenTheGangEndsIsRemoved) {
  Commit(10);
  first_->Save(11, "of a step that the other does not save");
  first_->ExpectDurable(MUSTER_OK);
  const std::shared_ptr<Store> store = OpenGangsStore();
  const auto objects = [&] { return store->List("u1000", DataPrefix("name-elastic")).value(); };
  EXPECT_EQ(objects().size(), 4U) << "two shards, a manifest, and what is to go";
  for (TestMember* member : {first_.get(), second_.get()}) member->Exit();
  for (TestMember* member : {first_.get(), second_.get()}) member->ExpectFinish();
  first_.reset();
  second_.reset();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (objects().size() > 3 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(objects().size(), 3U);
  EXPECT_TRUE(Catalog(store, "u1000", "name-elastic").LoadManifest(10));
}

// Who has been replaced does not know what becomes of a save.
TEST_F(SaveOutcome, ACoordinatorThatHasLostTheRecordLeavesASaveToItsSuccessor) {
  Commit(10);
  Catalog catalog(OpenGangsStore(), "u1000", "name-elastic");
  const auto head = catalog.Load();
  ASSERT_TRUE(head) << head.error().message;
  const Fence next{head->fence.term + 1, head->fence.generation};
  ASSERT_TRUE(catalog.Advance(head->fence, next, head->record));
  Commit(11);
  EXPECT_GT(catalog.Load()->fence.term, next.term);
}

class SmallChunks : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    EngineOptions engine;
    engine.chunk_bytes = 16;
    StartDaemon(0, engine);
  }
};

// Its report would not fit into a message, and would be sent again and again.
TEST_F(SmallChunks, AShardOfMoreChunksThanDaemonsCanTellEachOtherIsRefusedBeforeItIsWritten) {
  TestMember member(daemons_[0]->socket(), StepHello(31, 0, 1), "n1");
  const uint64_t most = uint64_t{kMaxShardChunks} * 16;
  EXPECT_EQ(member.Run().max_shard_bytes, most);
  member.Save(1, "x", most);
  member.ExpectDurable(MUSTER_E_TOO_LARGE);
  EXPECT_THAT(member.rest(), HasSubstr("400000 chunks"));
  member.Save(2, "small enough");
  member.ExpectCommitted();
}

}  // namespace
}  // namespace muster
