#include "daemon/coordinator/core.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/daemon/gang_rig.h"
#include "tests/unit/daemon/ordered.h"

namespace muster {
namespace {

using gang::Rig;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint32_t kNodes = 2;
const Error kConflicting{Errc::kConflict, "another fence"};

// A gang of two nodes with a task each, which begins: term 1, generation 1 when both are here.
class Core : public ::testing::Test {
 protected:
  Core() {
    core_.Take({1, 0}, {}, std::nullopt);
    core_.Begin(Rig::SettingsOf(kNodes, 1), nullptr, {}, {});
    core_.Go();
    core_.Lead();
    for (uint32_t node = 0; node < kNodes; ++node) {
      core_.Registered(node, 0, std::nullopt);
      core_.Feed(gang::NodeJoined{
          .node = node, .name = fmt::format("n{}", node), .members = {{.task = node, .local_id = 0}}});
    }
  }
  void Recorded(uint64_t generation = 1) { core_.RecordWritten(generation, core_.gang().state(), 0); }
  void Save(uint64_t step) {
    for (uint32_t rank = 0; rank < kNodes; ++rank) {
      Shard shard;
      shard.rank = rank;
      core_.ShardWritten({.generation = 1, .step = step}, shard);
    }
  }

  Ordered orders_;
  CoordinatorCore core_{{orders_, orders_, orders_, orders_, orders_}, Terms(0, {1, 0}, {}), true};
};

TEST_F(Core, TheFirstGenerationIsStartedBehindItsRecord) {
  EXPECT_THAT(orders_.Take(), ElementsAre("write 1.0", "attend 0", "attend 1", "build start", "write 1.1"));
  Recorded(0);
  EXPECT_THAT(orders_.Take(), IsEmpty());
  Recorded();
  EXPECT_THAT(orders_.Take(), ElementsAre("start 0,1"));
}

TEST_F(Core, WhatOlderGenerationsHaveLeftIsRemovedWhenTheFirstRecordOfAGenerationIsInTheStore) {
  Recorded(0);
  EXPECT_EQ(orders_.collected, 0) << "this coordinator has found generation 0 in the store";
  Recorded();
  EXPECT_EQ(orders_.collected, 1);
  Recorded();
  EXPECT_EQ(orders_.collected, 1);
}

TEST_F(Core, ARecordThatAnotherHasIsAskedForOnce) {
  orders_.Take();
  core_.Deposed("conflict");
  core_.Deposed("conflict");
  EXPECT_THAT(orders_.Take(), ElementsAre("find successor"));
  core_.Lose();
  core_.Feed(gang::NodeLeft{0});
  EXPECT_TRUE(core_.over());
  EXPECT_THAT(orders_.Take(), IsEmpty()) << "nothing is decided without the record";
}

TEST_F(Core, ACommitUnderAFenceThatIsMovedMeanwhileIsMadeAgainAndDeposesNobody) {
  Recorded();
  orders_.Take();
  Save(10);
  EXPECT_THAT(orders_.Take(), ElementsAre("commit 10 under 1.1 keeping "));
  const Manifest refused = orders_.manifest;
  core_.RaiseTerm();
  EXPECT_THAT(orders_.Take(), ElementsAre("raise 2"));
  core_.CommitOver(refused, kConflicting);
  EXPECT_THAT(orders_.Take(), ElementsAre("commit again later"));
  core_.TermRaised({});
  orders_.Take();
  core_.SaveAgain(1, 10);
  EXPECT_THAT(orders_.Take(), ElementsAre("commit 10 under 2.1 keeping "));
  core_.CommitOver(orders_.manifest, {});
  EXPECT_THAT(orders_.Take(), ElementsAre("committed 10", "tell 10"));
  Save(11);
  EXPECT_THAT(orders_.Take(), ElementsAre("commit 11 under 2.1 keeping 10"));
  core_.CommitOver(orders_.manifest, kConflicting);
  EXPECT_THAT(orders_.Take(), ElementsAre("find successor")) << "nobody has moved the fence here";
}

TEST_F(Core, ABadCheckpointIsMarkedBeforeAnythingStartsAndAgainAfterTheFenceHasMoved) {
  Recorded();
  Save(10);
  core_.CommitOver(orders_.manifest, {});
  core_.Feed(gang::MemberExited{0, 1, {.status = 9}});
  for (uint32_t node = 0; node < kNodes; ++node) core_.Feed(gang::NodeStopped{node, 1});
  Recorded(2);
  EXPECT_THAT(orders_.Take(), Contains("generation 2 starts from the checkpoint of step 10"));
  core_.Feed(
      gang::CheckpointBad{.task = 1, .generation = 2, .step = 10, .reason = "torn", .manifest = "m10"});
  EXPECT_THAT(orders_.Take(), Contains("mark 10"));
  for (uint32_t node = 0; node < kNodes; ++node) core_.Feed(gang::NodeStopped{node, 2});
  Recorded(3);
  EXPECT_THAT(orders_.Take(), Not(Contains("start 0,1"))) << "it is not known yet what is left";
  const gang::RejectCheckpoint bad{.step = 10, .reason = "torn", .manifest = "m10"};
  core_.Marked({1, 2}, bad, kConflicting, std::vector<CoordinatorCore::Listed>());
  EXPECT_THAT(orders_.Take(), ElementsAre("mark 10 later")) << "this coordinator has written a record since";
  core_.Marked({1, 3}, bad, {}, std::vector<CoordinatorCore::Listed>{{8, 1, "m8"}, {10, 1, "m10"}});
  EXPECT_THAT(orders_.Take(),
              ::testing::IsSupersetOf({"generation 3 starts from the checkpoint of step 8", "start 0,1"}));
}

TEST_F(Core, ANodeThatIsSilentIsToRegisterAgain) {
  Recorded();
  orders_.Take();
  core_.Silent({1, 0});
  const std::vector<std::string> said = orders_.Take();
  EXPECT_THAT(said, ::testing::IsSupersetOf({"close 1", "removed 1"}));
  core_.Silent({7, 0});
  EXPECT_THAT(orders_.Take(), IsEmpty()) << "there is no such node";
}

TEST_F(Core, ATermThatWasNotRaisedIsReadOfTheStore) {
  orders_.Take();
  core_.RaiseTerm();
  core_.Persist();
  EXPECT_THAT(orders_.Take(), ElementsAre("raise 2")) << "the record waits for the term";
  core_.TermRaised(Error{Errc::kUnavailable, "no answer"});
  EXPECT_THAT(orders_.Take(), ::testing::IsSupersetOf({"write 1.1", "ask term"}));
  core_.StoreHasTerm(5, 0);
  EXPECT_THAT(orders_.Take(), ElementsAre("depose"));
}

}  // namespace
}  // namespace muster
