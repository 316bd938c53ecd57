#include "daemon/coordinator/pending_saves.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

namespace muster {
namespace {

using Outcome = PendingSaves::Outcome;

// What is ordered, in words: "commit 5.1" (the attempt), "tell 5 ok", "tell 5 why", "wait 5 250", "note kind", "refuses".
std::vector<std::string> Words(const PendingSaves::Actions& actions) {
  struct Word {
    std::string operator()(const PendingSaves::Commit& a) const {
      return "commit " + std::to_string(a.manifest->step) + "." + std::to_string(a.attempt);
    }
    std::string operator()(const PendingSaves::Tell& a) const {
      return "tell " + std::to_string(a.step) + " " + (a.error.empty() ? "ok" : a.error);
    }
    std::string operator()(const PendingSaves::Wait& a) const {
      return "wait " + std::to_string(a.step) + " " + std::to_string(a.time.count());
    }
    std::string operator()(const PendingSaves::Note& a) const { return "note " + a.kind; }
    std::string operator()(const PendingSaves::StoreRefuses& /*a*/) const { return "refuses"; }
  };
  std::vector<std::string> words;
  for (const auto& action : actions) words.push_back(std::visit(Word(), action));
  return words;
}
using Expected = std::vector<std::string>;

class PendingSavesTest : public ::testing::Test {
 protected:
  PendingSaves::Actions Write(uint64_t step, uint32_t rank, bool older_to_come = false) {
    Shard shard;
    shard.rank = rank;
    return saves_.OnWritten(now_, {.generation = 1, .step = step, .older_to_come = older_to_come}, shard);
  }
  PendingSaves::Actions WriteAll(uint64_t step) {
    Write(step, 0);
    return Write(step, 1);
  }
  Expected Over(uint64_t step, Outcome outcome, const std::string& error = "") {
    return Words(saves_.OnCommitOver(now_, 1, step, outcome, error).actions);
  }
  Expected Fail(uint64_t step, bool lost = false, bool given_up = false) {
    return Words(saves_.OnFailed(
        now_,
        {.generation = 1, .step = step, .rank = 1, .lost = lost, .given_up = given_up, .error = "why"}));
  }

  PendingSaves::Now now_{.generation = 1, .members = 2, .world_size = 2, .settled = true};
  PendingSaves saves_;
};

TEST_F(PendingSavesTest, AStepIsCommittedWhenAllMembersHaveSavedIt) {
  EXPECT_EQ(Words(Write(5, 0)), Expected{});
  EXPECT_EQ(Words(Write(5, 0)), Expected{}) << "the same member again";
  const auto actions = Write(5, 1);
  ASSERT_EQ(Words(actions), Expected{"commit 5.1"});
  const auto& commit = std::get<PendingSaves::Commit>(actions[0]);
  EXPECT_EQ(commit.manifest->world_size, 2U);
  ASSERT_EQ(commit.manifest->shards.size(), 2U);
  EXPECT_EQ(commit.manifest->shards[1].rank, 1U);
  EXPECT_TRUE(saves_.Committing(1));
  EXPECT_EQ(Words(Write(5, 1)), Expected{}) << "it is being committed";
  EXPECT_EQ(Over(5, Outcome::kDone), Expected{"tell 5 ok"});
  EXPECT_FALSE(saves_.Committing(1));
  EXPECT_TRUE(saves_.IsCommitted(1, 5));
  EXPECT_EQ(Words(Write(5, 1)), Expected{"tell 5 ok"}) << "who was not told asks again";
}

TEST_F(PendingSavesTest, WhatIsOfAnotherGenerationOrOfNobodyIsNotCounted) {
  Shard shard;
  EXPECT_EQ(Words(saves_.OnWritten(now_, {.generation = 2, .step = 5}, shard)), Expected{});
  shard.rank = 2;
  EXPECT_EQ(Words(saves_.OnWritten(now_, {.generation = 1, .step = 5}, shard)), Expected{});
  EXPECT_EQ(Words(Write(5, 1)), Expected{});
}

TEST_F(PendingSavesTest, NothingIsCommittedBeforeItIsKnownWhoseShardsMakeACheckpoint) {
  now_ = {.generation = 1, .members = 3, .world_size = 1, .settled = false};
  EXPECT_EQ(Words(Write(5, 0)), Expected{});
  EXPECT_EQ(Words(Write(5, 2)), Expected{});
  now_ = {.generation = 1, .members = 3, .world_size = 2, .settled = true};
  EXPECT_EQ(Words(saves_.OnSettled(now_)), Expected{}) << "rank 2 does not save, and rank 1 is missing";
  EXPECT_EQ(Words(Write(5, 1)), Expected{"commit 5.1"});
}

TEST_F(PendingSavesTest, WhatWaitedIsCommittedWhenTheGangHasSettled) {
  now_.settled = false;
  WriteAll(5);
  WriteAll(6);
  now_.settled = true;
  EXPECT_EQ(Words(saves_.OnSettled(now_)), (Expected{"commit 5.1", "commit 6.1"}));
}

TEST_F(PendingSavesTest, ACommitThatTheOwnFenceHasRefusedIsTriedAgainUnderTheNewOne) {
  WriteAll(5);
  EXPECT_EQ(Over(5, Outcome::kRefused), Expected{"wait 5 250"});
  now_.settled = false;
  EXPECT_EQ(Words(saves_.Again(now_, 1, 5)), Expected{"wait 5 250"}) << "no fence is certain to be good";
  now_.settled = true;
  EXPECT_EQ(Words(saves_.Again(now_, 1, 5)), Expected{"commit 5.2"});
  EXPECT_EQ(Over(5, Outcome::kRefused), Expected{"wait 5 500"});
  saves_.BeginGeneration();
  EXPECT_EQ(Words(saves_.Again(now_, 1, 5)), Expected{}) << "it is over";
}

TEST_F(PendingSavesTest, AStoreThatIsAwayIsWaitedForAndTheDelayIsToldOnce) {
  WriteAll(5);
  EXPECT_EQ(Over(5, Outcome::kMayPass, "away"), (Expected{"note checkpoint_delayed", "wait 5 250"}));
  WriteAll(6);
  EXPECT_EQ(Over(6, Outcome::kMayPass, "away"), Expected{"wait 6 250"});
  EXPECT_EQ(Words(saves_.OnDelayed(now_, 1, 7, "away")), Expected{});
  EXPECT_EQ(Over(6, Outcome::kDone), Expected{"tell 6 ok"});
  EXPECT_EQ(Words(saves_.OnDelayed(now_, 1, 7, "away")), Expected{"note checkpoint_delayed"})
      << "it has answered meanwhile";
}

TEST_F(PendingSavesTest, OfCommitsThatWaitOnlyTheNewestAreKept) {
  for (const uint64_t step : {5, 6, 7}) WriteAll(step);
  EXPECT_EQ(Over(5, Outcome::kMayPass, "away"),
            (Expected{"note checkpoint_delayed", "tell 5 it was given up for newer ones: away"}));
  EXPECT_EQ(Over(6, Outcome::kMayPass, "away"), Expected{"wait 6 250"});
  EXPECT_EQ(Words(Write(5, 0)), Expected{"tell 5 it was given up for newer ones: away"});
}

TEST_F(PendingSavesTest, ACommitThatFailsFailsForAllMembersAndForGood) {
  WriteAll(5);
  EXPECT_EQ(Over(5, Outcome::kFailed, "damaged"), (Expected{"note checkpoint_failed", "tell 5 damaged"}));
  EXPECT_EQ(Words(Write(5, 0)), Expected{"tell 5 damaged"});
}

TEST_F(PendingSavesTest, AShardThatCannotBeWrittenFailsTheSaveForAll) {
  Write(5, 0);
  EXPECT_EQ(Fail(5), (Expected{"note checkpoint_failed", "refuses", "tell 5 why"}));
  EXPECT_EQ(Fail(5), Expected{"tell 5 why"});
  EXPECT_EQ(Fail(6, false, true), Expected{"tell 6 why"}) << "one that was given up is no news";
  WriteAll(7);
  EXPECT_EQ(Fail(7), Expected{}) << "its shard had come";
}

TEST_F(PendingSavesTest, WhatACoordinatorBeforeHasToldStays) {
  Write(5, 0);
  EXPECT_EQ(Words(saves_.OnFailedBefore(1, 5, "before")), Expected{"tell 5 before"});
  EXPECT_EQ(Words(saves_.OnFailedBefore(1, 6, "before")), Expected{}) << "nobody waits for it";
  EXPECT_EQ(Words(Write(6, 0)), Expected{"tell 6 before"});
  saves_.CommittedBefore(1, 7);
  EXPECT_EQ(Words(saves_.OnFailedBefore(1, 7, "before")), Expected{});
  EXPECT_EQ(Words(Write(7, 0)), Expected{"tell 7 ok"});
}

// The record may be one generation behind the members. The next generation saves the step from which it began once more.
TEST_F(PendingSavesTest, WhatTheGenerationBeforeHasCommittedIsNoCommitOfTheOneThatRuns) {
  saves_.CommittedBefore(1, 5);
  EXPECT_TRUE(saves_.IsCommitted(1, 5));
  EXPECT_FALSE(saves_.IsCommitted(2, 5)) << "a report that it does not verify would mean nothing";
  now_.generation = 2;
  for (const uint32_t rank : {0, 1}) {
    Shard shard;
    shard.rank = rank;
    const Expected expected = rank == 0 ? Expected{} : Expected{"commit 5.1"};
    EXPECT_EQ(Words(saves_.OnWritten(now_, {.generation = 2, .step = 5}, shard)), expected);
  }
  EXPECT_EQ(Words(saves_.OnCommitOver(now_, 2, 5, Outcome::kDone, "").actions), Expected{"tell 5 ok"});
  EXPECT_TRUE(saves_.IsCommitted(2, 5));
}

TEST_F(PendingSavesTest, ASaveThatAMemberHasSkippedEndsWithTheSecondNewerCommit) {
  Write(5, 0);
  WriteAll(6);
  EXPECT_EQ(Over(6, Outcome::kDone), Expected{"tell 6 ok"}) << "one may come a little behind";
  WriteAll(7);
  EXPECT_EQ(Over(7, Outcome::kDone),
            (Expected{"tell 7 ok",
                      "tell 5 not all members have saved it, and two newer checkpoints are committed"}));
}

TEST_F(PendingSavesTest, WhoStillWritesAnOlderShardSkipsNothing) {
  Write(5, 0);
  for (const uint64_t step : {6, 7, 8}) {
    Write(step, 0);
    Write(step, 1, true);
    EXPECT_EQ(Over(step, Outcome::kDone), Expected{"tell " + std::to_string(step) + " ok"});
  }
  EXPECT_EQ(Words(Write(5, 1)), Expected{"commit 5.1"});
}

}  // namespace
}  // namespace muster
