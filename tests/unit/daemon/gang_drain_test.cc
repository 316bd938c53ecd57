// Nodes that are left on purpose: drained by an operator, or sick.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// n2 is the spare.
class GangDrain : public ::testing::Test {
 protected:
  GangDrain() { rig.Run(); }
  Rig rig{Rig::WithSpares(3, 1, 1)};
};

TEST_F(GangDrain, ASpareIsTakenOutAtOnce) {
  rig.Feed(DrainNode{2, "firmware"});
  ASSERT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_EQ(rig.Did<DrainInSlurm>()->node, 2U);
  EXPECT_EQ(rig.Did<DrainInSlurm>()->reason, "firmware");
  EXPECT_FALSE(rig.gang.IsSpare(2));
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangDrain, AnActiveNodeIsLeftAtTheNextCheckpoint) {
  rig.Feed(DrainNode{0, "firmware"});
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->save);
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 30'000);
  EXPECT_FALSE(rig.Did<DrainInSlurm>());
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ASSERT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), -1);
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
  EXPECT_THAT(rig.NoteOf("planned"), HasSubstr("node n0 is drained: firmware"));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangDrain, WithoutACheckpointItIsLeftAfterTheGrace) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Feed(TimerFired{Timer::kGrace});
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
}

TEST_F(GangDrain, WithoutRoomTheGangStaysAndOnlySlurmIsTold) {
  rig.Feed(DrainNode{2, "firmware"});
  rig.Feed(DrainNode{0, "firmware"});
  EXPECT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_FALSE(rig.Did<TellMembers>());
  EXPECT_THAT(rig.NoteOf("drain"), HasSubstr("cannot be replaced"));
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangDrain, TwoNodesThatOneSpareCannotReplaceAreNotBothLeft) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Feed(DrainNode{1, "firmware"});
  EXPECT_THAT(rig.NoteOf("drain"), HasSubstr("cannot be replaced"));
  rig.Feed(CheckpointCommitted{10});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
}

TEST_F(GangDrain, ADrainWhoseSpareIsGoneByTheTimeOfTheCheckpointDoesNotEndTheGang) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Silence(2);
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_THAT(rig.NoteOf("drain"), HasSubstr("cannot be replaced"));
}

TEST_F(GangDrain, AFaultBringsTheDrainForward) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Exit(1, ExitCode(1));
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
  rig.ExecuteAll();
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangDrain, ADrainWhileAGenerationIsStoppedIsForTheNextOne) {
  rig.Exit(1, ExitCode(1));
  rig.Feed(DrainNode{0, "firmware"});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
}

TEST_F(GangDrain, ANodeThatIsTakenBackBeforeTheCheckpointStays) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Feed(NodeReturned{0});
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangDrain, ADrainedNodeThatIsGivenBackIsASpare) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Feed(CheckpointCommitted{10});
  rig.StopAll();
  rig.ExecuteAll();
  EXPECT_FALSE(rig.gang.IsSpare(0));
  rig.Feed(NodeReturned{0});
  EXPECT_TRUE(rig.gang.IsSpare(0));
  EXPECT_TRUE(rig.Did<Persist>());
}

TEST_F(GangDrain, DrainingTwiceIsDrainingOnce) {
  rig.Feed(DrainNode{0, "firmware"});
  rig.Feed(DrainNode{0, "firmware"});
  EXPECT_TRUE(rig.actions.empty());
}

// ---- sick nodes

TEST_F(GangDrain, ASickNodeIsReplacedAtOnceAndDrainedInSlurm) {
  rig.Feed(NodeSick{0, "Xid 79"});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ASSERT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_EQ(rig.Did<DrainInSlurm>()->reason, "Xid 79");
  EXPECT_FALSE(rig.Did<LoseNode>()) << "it lives";
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangDrain, ASickNodesMembersAreDeadBeforeItsSpareStarts) {
  rig.Feed(NodeSick{0, "Xid 79"});
  rig.Stopped(1);
  rig.Stopped(2);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Stopped(0);
  EXPECT_TRUE(rig.Did<StartGeneration>());
}

TEST_F(GangDrain, ASickSpareIsOnlyTakenOut) {
  rig.Feed(NodeSick{2, "Xid 79"});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_FALSE(rig.gang.IsSpare(2));
}

TEST_F(GangDrain, ANodeThatIsSickBeforeTheStartIsNotUsed) {
  Rig fresh(Rig::WithSpares(3, 1, 1));
  fresh.Join(0);
  fresh.Feed(NodeSick{0, "Xid 79"});
  fresh.Join(1);
  fresh.Join(2);
  EXPECT_EQ(fresh.gang.state(), State::kStarting);
  EXPECT_THAT(fresh.gang.active(), ElementsAre(1, 2));
}

TEST_F(GangDrain, ASickNodeWithoutASpareLeadsToARequeueThatNamesIt) {
  rig.Silence(2);
  rig.Feed(NodeSick{0, "Xid 79"});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("n0: Xid 79"));
}

TEST_F(GangDrain, SicknessIsSaidOnce) {
  rig.Feed(NodeSick{2, "Xid 79"});
  rig.Feed(NodeSick{2, "Xid 79"});
  EXPECT_TRUE(rig.actions.empty());
}

// ---- processes that cannot be killed

TEST_F(GangDrain, ANodeWithProcessesThatSurviveSigkillIsReplacedAndDrained) {
  rig.Exit(0, ExitCode(7));
  rig.Stopped(0, 2);
  ASSERT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_EQ(rig.Did<DrainInSlurm>()->node, 0U);
  EXPECT_THAT(rig.NoteOf("unkillable"), HasSubstr("node n0: 2 processes of generation 1 survive SIGKILL"));
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable) << "not every member is known to be dead";
  EXPECT_EQ(rig.gang.last_fault()->task, 0U) << "the first cause is the member's";
}

TEST_F(GangDrain, UnkillableProcessesAreSaidOnce) {
  rig.Exit(0, ExitCode(7));
  rig.Stopped(0, 2);
  rig.Stopped(0, 2);
  EXPECT_FALSE(rig.Did<DrainInSlurm>());
}

}  // namespace
}  // namespace muster::gang
