// Nodes are lost, and spares take their places.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint32_t> RanksOf(const Gang& gang, uint32_t node) {
  std::vector<uint32_t> ranks;
  for (const uint32_t task : gang.nodes()[node].tasks)
    ranks.push_back(gang.members()[task].rank.value_or(999));
  return ranks;
}

// Four nodes with two tasks each; n3 is the spare.
class GangSpares : public ::testing::Test {
 protected:
  GangSpares() { rig.Run(); }
  Rig rig{Rig::WithSpares(4, 2, 1)};
};

TEST_F(GangSpares, TheLastNodesWaitAndHaveNoRanks) {
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
  EXPECT_EQ(rig.gang.WorldSize(), 6U);
  EXPECT_THAT(RanksOf(rig.gang, 2), ElementsAre(4, 5));
  EXPECT_THAT(RanksOf(rig.gang, 3), ElementsAre(999, 999));
  EXPECT_TRUE(rig.gang.IsSpare(3));
  EXPECT_EQ(rig.gang.state(), State::kRunning) << "spares are not waited for";
}

TEST(GangSparesJoining, SparesAreToldOfTheGenerationToo) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.JoinAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(0, 1, 2));
}

TEST_F(GangSpares, ALostNodeStopsTheGenerationWhereItCanStillBeReached) {
  rig.Silence(1);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(0, 2, 3));
  ASSERT_TRUE(rig.Did<LoseNode>());
  EXPECT_EQ(rig.Did<LoseNode>()->node, 1U);
  EXPECT_THAT(rig.NoteOf("node_lost"), HasSubstr("node n1 is lost: dead or cut off"));
}

TEST_F(GangSpares, TheSpareTakesTheRanksOfTheNodeItReplaces) {
  rig.Silence(1);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.generation(), 2U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
  EXPECT_THAT(RanksOf(rig.gang, 0), ElementsAre(0, 1));
  EXPECT_THAT(RanksOf(rig.gang, 3), ElementsAre(2, 3));
  EXPECT_THAT(RanksOf(rig.gang, 2), ElementsAre(4, 5));
  EXPECT_THAT(rig.NoteOf("placement"), HasSubstr("n3 takes the place of n1"));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangSpares, TheReplacementIsTheSameWhenFaultsFollow) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Restart(0);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
}

TEST(GangSparesSizes, ASpareWithAnotherNumberOfTasksIsNotTaken) {
  Rig rig(Rig::WithSpares(3, 2, 1));
  rig.Join(0);
  rig.Join(1);
  NodeJoined small = rig.Node(2);
  small.members.pop_back();
  rig.Feed(small);
  rig.ExecuteAll();
  ASSERT_EQ(rig.gang.state(), State::kRunning);
  rig.Silence(1);
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangSpares, ALostSpareIsOnlyNoted) {
  rig.Silence(3);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_NE(rig.NoteOf("node_lost"), "");
  EXPECT_TRUE(rig.Did<LoseNode>());
  EXPECT_FALSE(rig.Did<StopGeneration>());
}

TEST_F(GangSpares, ASparesLostSupervisorIsOnlyNoted) {
  rig.LoseSupervisor(7);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_NE(rig.NoteOf("spare_lost"), "");
  EXPECT_FALSE(rig.gang.IsSpare(3));
}

TEST_F(GangSpares, ALostSupervisorMovesItsNodesRanksToTheSpareAndIsFree) {
  rig.LoseSupervisor(2);
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST(GangSparesJoining, AnEndedTaskWhileOthersAreWaitedForDoesNotEndAGangWithASpare) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Join(0);
  rig.LoseSupervisor(0);
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  rig.Join(1);
  rig.Join(2);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.gang.active(), ElementsAre(1, 2));
}

TEST(GangSparesJoining, ATaskThatEndedBeforeItsNodeJoinedLeavesThatNodeOut) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  NodeJoined joined = rig.Node(0);
  joined.members[0].state = MemberState::kStopped;
  joined.members[0].exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
  rig.Feed(joined);
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  rig.Join(1);
  rig.Join(2);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_EQ(rig.gang.generation(), 1U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(1, 2));
}

TEST(GangSparesJoining, AfterTheJoinTimeoutASpareIsTakenForANodeThatNeverCame) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Join(0);
  rig.Join(2);
  rig.Feed(TimerFired{Timer::kJoin});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2));
  EXPECT_THAT(rig.NoteOf("absent"), HasSubstr("these have not joined: node 1 of the step"));
}

TEST(GangSparesJoining, ANodeThatComesLateWaitsAsASpare) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Join(0);
  rig.Join(2);
  rig.Feed(TimerFired{Timer::kJoin});
  rig.ExecuteAll();
  rig.Join(1);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_TRUE(rig.gang.IsSpare(1));
}

TEST_F(GangSpares, ALostNodeThatReturnsIsToldToStopWhatItStillRunsAndBecomesASpare) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Join(1, MemberState::kRunning, 1);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(1));
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_FALSE(rig.gang.IsSpare(1)) << "something runs there";
  rig.Stopped(1);
  EXPECT_TRUE(rig.gang.IsSpare(1));
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Silence(0);
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(1, 3, 2));
}

TEST_F(GangSpares, ALostNodeThatReturnsFencedIsASpareAtOnce) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Join(1, MemberState::kStopped, 1);
  EXPECT_FALSE(rig.Did<StopGeneration>());
  EXPECT_TRUE(rig.gang.IsSpare(1));
}

TEST_F(GangSpares, ALostNodeThatReturnsWithWhatCannotBeKilledIsNoSpare) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  NodeJoined joined = rig.Node(1, MemberState::kStopped, 1);
  joined.members[1].unkillable = 1;
  rig.Feed(joined);
  EXPECT_FALSE(rig.gang.IsSpare(1));
  EXPECT_TRUE(rig.Did<DrainInSlurm>());
}

TEST_F(GangSpares, ALostNodeThatReturnsWhileTheOthersStopIsWaitedForAndKeepsItsPlace) {
  rig.Silence(1);
  rig.Join(1, MemberState::kRunning, 1);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(1));
  for (const uint32_t node : {0, 2, 3}) rig.Stopped(node);
  EXPECT_FALSE(rig.Did<StartGeneration>()) << "its members have not said that they are dead";
  rig.Stopped(1);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangSpares, TwoNodesLostAtOnceAreTwoPlaces) {
  Rig two(Rig::WithSpares(5, 1, 2));
  two.Run();
  two.Silence(0);
  two.Silence(2);
  two.StopAll();
  EXPECT_THAT(two.gang.active(), ElementsAre(3, 1, 4));
  EXPECT_EQ(two.gang.restarts().at("infrastructure"), 1U);
}

TEST_F(GangSpares, ASpareThatIsAwayIsNotTaken) {
  Rig two(Rig::WithSpares(4, 1, 2));
  two.Run();
  two.Feed(NodeLeft{2});
  two.Silence(0);
  two.StopAll();
  EXPECT_THAT(two.gang.active(), ElementsAre(3, 1));
}

// ---- whether the record must be durable before the start

TEST_F(GangSpares, TheStartAfterALostNodeIsDurable) {
  rig.Silence(1);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable);
}

TEST_F(GangSpares, TheStartAfterALostNodeThatIsBackInTimeIsDurableTooItsDeathWasInferred) {
  rig.Silence(1);
  rig.Join(1, MemberState::kStopped, 1);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable);
}

TEST_F(GangSpares, AStartOnOtherNodesIsDurable) {
  rig.LoseSupervisor(2);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable);
}

TEST_F(GangSpares, TheStartAfterAMembersDeathIsNot) {
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_FALSE(rig.Did<StartGeneration>()->durable);
}

TEST_F(GangSpares, OnceTheReplacementRunsARestartIsNotDurableAgain) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>()->durable);
}

TEST_F(GangSpares, ARestartBeforeTheReplacementRunsIsStillDurable) {
  rig.Silence(1);
  rig.StopAll();
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable);
}

TEST_F(GangSpares, ALostSpareMakesNothingDurable) {
  rig.Silence(3);
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>()->durable);
}

// A lost spare that still reaches the store reads there that it is lost, and does not take the gang over.
TEST(GangSilence, ALostSpareIsInTheRecordAtOnce) {
  Rig rig(Rig::WithSpares(4, 1, 1));
  rig.Run();
  rig.Silence(3);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_TRUE(rig.Did<Persist>());
}

// The checkpoint that a generation begins from is chosen at its start: a record that is written before would have the old one.
TEST(GangSilence, NothingIsWrittenBetweenASilenceAndTheStartThatItLeadsTo) {
  Rig rig(Rig::WithSpares(4, 1, 1));
  rig.Run();
  rig.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2}) rig.Stopped(node);
  rig.Silence(1);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  bool started = false;
  for (const Action& action : rig.actions) {
    started |= std::holds_alternative<StartGeneration>(action);
    EXPECT_TRUE(started || !std::holds_alternative<Persist>(action));
  }
  EXPECT_TRUE(rig.Did<Persist>());
}

}  // namespace
}  // namespace muster::gang
