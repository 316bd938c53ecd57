// From the first node to the first generation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GangJoining, BeginsByWaitingForAllNodesUntilTheJoinTimeout) {
  const Rig rig;
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  EXPECT_EQ(rig.TimerSet(Timer::kJoin), 60'000);
  EXPECT_TRUE(rig.Did<Persist>());
}

TEST(GangJoining, NothingStartsBeforeEveryNodeIsHere) {
  Rig rig(3);
  rig.Join(0);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Join(2);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kJoining);
}

TEST(GangJoining, TheLastNodeStartsTheFirstGenerationOnAllNodes) {
  Rig rig(3);
  rig.JoinAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.Did<StartGeneration>()->generation, 1U);
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(0, 1, 2));
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_EQ(rig.TimerSet(Timer::kJoin), -1);
}

TEST(GangJoining, ANodeThatJoinsTwiceCountsOnce) {
  Rig rig(2);
  rig.Join(0);
  rig.Join(0);
  EXPECT_EQ(rig.gang.state(), State::kJoining);
}

TEST(GangJoining, ANodeThatLeftAgainIsWaitedFor) {
  Rig rig(2);
  rig.Join(0);
  rig.Feed(NodeLeft{0});
  rig.Join(1);
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  rig.Join(0);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST(GangJoining, WhoHasNotJoinedRunsNothingUnlessTheGangHasBeenStartedBefore) {
  Rig rig(3);
  rig.Join(0);
  rig.Feed(NodeLeft{0});
  EXPECT_TRUE(rig.gang.MayHaveMembers(0));
  EXPECT_FALSE(rig.gang.MayHaveMembers(1));
  rig.Join(2, MemberState::kRunning, 1);
  EXPECT_TRUE(rig.gang.MayHaveMembers(1)) << "a coordinator before this one has started a generation";
  const Rig taken(Rig::SettingsOf(3, 1), {.generation = 1, .running = true, .active = {0, 1}, .lost = {1}});
  EXPECT_TRUE(taken.gang.MayHaveMembers(0));
  EXPECT_FALSE(taken.gang.MayHaveMembers(1)) << "it is lost";
  EXPECT_TRUE(taken.gang.MayHaveMembers(2));
}

TEST(GangJoining, ANodeOutsideTheStepIsIgnored) {
  Rig rig(2);
  rig.Join(7);
  EXPECT_TRUE(rig.actions.empty());
}

TEST(GangJoining, TheJoinTimeoutNamesWhoIsMissing) {
  Rig rig(3);
  rig.Join(0);
  rig.Join(1);
  rig.Feed(NodeLeft{1});
  rig.Feed(TimerFired{Timer::kJoin});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.gang.succeeded());
  ASSERT_TRUE(rig.Did<ReportToJob>());
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("after 60 s these have not joined: n1, node 2"));
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("cannot start"));
  ASSERT_TRUE(rig.Did<FinishGang>());
  EXPECT_EQ(rig.Did<FinishGang>()->code, 1);
  EXPECT_THAT(rig.Did<FinishGang>()->nodes, ElementsAre(0));
}

TEST(GangJoining, ANodeThatComesAfterTheJoinTimeoutIsToldThatItIsOver) {
  Rig rig(2);
  rig.Join(0);
  rig.Feed(TimerFired{Timer::kJoin});
  rig.Join(1);
  ASSERT_TRUE(rig.Did<FinishGang>());
  EXPECT_EQ(rig.Did<FinishGang>()->code, 1);
  EXPECT_THAT(rig.Did<FinishGang>()->nodes, ElementsAre(1));
}

TEST(GangJoining, TheJoinTimerMeansNothingOnceTheGangRuns) {
  Rig rig;
  rig.Run();
  rig.Feed(TimerFired{Timer::kJoin});
  EXPECT_TRUE(rig.actions.empty());
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST(GangJoining, ATaskThatIsEndedWhileTheOthersAreWaitedForEndsTheGang) {
  Rig rig(2);
  rig.Join(0);
  rig.LoseSupervisor(1);
  rig.Feed(AbsentProbed{});  // it is not because the other node is dead
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("task 1 on n0: the task was ended from outside"));
}

TEST(GangJoining, ATaskThatWasEndedBeforeItsNodeJoinedEndsTheGang) {
  Rig rig(2);
  rig.Join(0);
  NodeJoined joined = rig.Node(1);
  joined.members[0].state = MemberState::kStopped;
  joined.members[0].exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
  rig.Feed(joined);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST(GangJoining, SlurmsSigtermWhileJoiningStartsNothingMore) {
  Rig rig(2);
  rig.Join(0);
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  ASSERT_TRUE(rig.Did<FinishGang>());
  EXPECT_FALSE(rig.Did<FinishGang>()->code) << "the tasks end by the signal that they got";
  rig.Join(1);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_TRUE(rig.Did<FinishGang>());
}

TEST(GangStarting, RunsWhenEveryMemberHasBeenExecuted) {
  Rig rig(1, 2);
  rig.JoinAll();
  rig.Feed(MemberExecuted{0, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  rig.Feed(MemberExecuted{1, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_EQ(rig.TimerSet(Timer::kProgress), 60'000);
  EXPECT_FALSE(rig.Did<ReportToJob>()) << "the first start is no news to the job";
}

TEST(GangStarting, AMemberThatHasEndedWellAlreadyIsNotWaitedFor) {
  Rig rig(1, 2);
  rig.JoinAll();
  rig.Exit(0, 0);  // so short that its exec was not seen
  rig.Feed(MemberExecuted{1, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST(GangStarting, MembersThatAllEndWellBeforeTheirExecIsSeenAreASuccess) {
  Rig rig(1, 2);
  rig.JoinAll();
  rig.Exit(0, 0);
  rig.Exit(1, 0);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST(GangStarting, ExecutionsOfAnotherGenerationOrTaskAreIgnored) {
  Rig rig(1, 1);
  rig.JoinAll();
  rig.Feed(MemberExecuted{0, 7, 0});
  rig.Feed(MemberExecuted{5, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

}  // namespace
}  // namespace muster::gang
