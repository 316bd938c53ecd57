// A node's daemon goes away and comes back, in each state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GangReconnect : public ::testing::Test {
 protected:
  GangReconnect() { rig.Run(); }
  Rig rig{2, 2};
};

TEST_F(GangReconnect, ANodeThatIsAwayStopsNothing) {
  rig.Feed(NodeLeft{1});
  EXPECT_FALSE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_TRUE(rig.Did<Persist>()) << "a coordinator that takes over must know whose members may run on";
}

TEST_F(GangReconnect, ANodeThatComesBackRunningRunsOn) {
  rig.Feed(NodeLeft{1});
  rig.Join(1, MemberState::kRunning, 1);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  // Its daemon may have restarted, and must learn the generation's facts again.
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.Did<StartGeneration>()->generation, 1U);
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(1));
}

// The coordinator before this one was cut off with it, and had begun another generation there.
TEST_F(GangReconnect, ANodeThatComesBackWithANewerGenerationStopsThatToo) {
  rig.Feed(NodeLeft{1});
  rig.Exit(0, ExitCode(7));
  rig.Stopped(0);
  ASSERT_EQ(rig.gang.state(), State::kStopping) << "it waits for the node that is away";
  rig.Join(1, MemberState::kRunning, 2);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.Did<StopGeneration>()->generation, 2U);
  rig.Feed(NodeStopped{1, 2});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_EQ(rig.gang.generation(), 3U);
}

TEST_F(GangReconnect, ANodeThatLeavesTwiceLeftOnce) {
  rig.Feed(NodeLeft{1});
  rig.Feed(NodeLeft{1});
  EXPECT_TRUE(rig.actions.empty());
}

TEST_F(GangReconnect, ANodeThatStaysAwayIsLostWhenItIsSilentAndIsNamed) {
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Feed(NodeLeft{1});
  rig.Silence(1);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(0));
  rig.Stopped(0);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_EQ(rig.Did<FinishGang>()->code, 1);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("node n1 is lost: dead or cut off"));
}

TEST_F(GangReconnect, AnExitThatHappenedMeanwhileIsSeen) {
  rig.Feed(NodeLeft{1});
  NodeJoined joined = rig.Node(1, MemberState::kRunning, 1);
  joined.members[1].state = MemberState::kExited;
  joined.members[1].exit = gang::Exit{.status = ExitCode(7)};
  rig.Feed(joined);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  EXPECT_EQ(rig.gang.last_fault()->task, 3U);
}

TEST_F(GangReconnect, AMemberThatItsSupervisorFencedMeanwhileIsSeen) {
  rig.Feed(NodeLeft{1});
  rig.Join(1, MemberState::kStopped, 1);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.Stopped(0);
  EXPECT_EQ(rig.gang.generation(), 2U) << "node 1 has said already that nothing runs there";
}

TEST_F(GangReconnect, TheLastGoodExitsOfAGangAreSeenWhenTheNodeComesBack) {
  rig.Exit(0, 0);
  rig.Exit(1, 0);
  rig.Feed(NodeLeft{1});
  NodeJoined joined = rig.Node(1, MemberState::kExited, 1);
  for (MemberInfo& member : joined.members) member.exit = gang::Exit{.status = 0};
  rig.Feed(joined);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangReconnect, ASupervisorThatDidNotComeBackWithItsNodeEndsTheGang) {
  rig.Feed(NodeLeft{1});
  NodeJoined joined = rig.Node(1, MemberState::kRunning, 1);
  // A daemon that restarted knows the task, not how far it was.
  joined.members[0] = {.task = 2,
                       .state = MemberState::kStopped,
                       .generation = 0,
                       .exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true}};
  rig.Feed(joined);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangReconnect, ANodeThatMissedTheStartGetsIt) {
  Rig starting(2, 1);
  starting.Join(0);
  starting.Join(1);
  starting.Feed(NodeLeft{1});
  starting.Feed(MemberExecuted{0, 1, 0});
  starting.Join(1);  // still waiting
  ASSERT_TRUE(starting.Did<StartGeneration>());
  EXPECT_EQ(starting.gang.state(), State::kStarting);
  starting.Feed(MemberExecuted{1, 1, 0});
  EXPECT_EQ(starting.gang.state(), State::kRunning);
}

TEST_F(GangReconnect, ANodeThatStartedBeforeItWentAwayCountsAsStarted) {
  Rig starting(2, 1);
  starting.JoinAll();
  starting.Feed(MemberExecuted{0, 1, 0});
  starting.Feed(NodeLeft{1});
  starting.Join(1, MemberState::kRunning, 1);
  EXPECT_EQ(starting.gang.state(), State::kRunning);
}

class GangReconnectWhileStopping : public GangReconnect {
 protected:
  GangReconnectWhileStopping() { rig.Exit(0, ExitCode(7)); }
};

TEST_F(GangReconnectWhileStopping, TheNextGenerationWaitsForANodeThatIsAway) {
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kStopping);
}

TEST_F(GangReconnectWhileStopping, ANodeThatStoppedAndWentAwayIsStillWaitedFor) {
  rig.Stopped(1);
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Join(1, MemberState::kStopped, 1);
  EXPECT_TRUE(rig.Did<StartGeneration>());
}

TEST_F(GangReconnectWhileStopping, ANodeThatComesBackRunningIsToldToStop) {
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  rig.Join(1, MemberState::kRunning, 1);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(1));
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Stopped(1);
  EXPECT_TRUE(rig.Did<StartGeneration>());
}

TEST_F(GangReconnectWhileStopping, ANodeThatStoppedMeanwhileNeedNotSayItAgain) {
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  rig.Join(1, MemberState::kStopped, 1);
  EXPECT_TRUE(rig.Did<StartGeneration>());
}

TEST_F(GangReconnectWhileStopping, ASupervisorLostMeanwhileEndsTheGang) {
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  NodeJoined joined = rig.Node(1, MemberState::kStopped, 1);
  joined.members[0].exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
  rig.Feed(joined);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangReconnectWhileStopping, ProcessesThatSurvivedSigkillMeanwhileTakeTheirNodeOut) {
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  NodeJoined joined = rig.Node(1, MemberState::kStopped, 1);
  joined.members[0].unkillable = 1;
  rig.Feed(joined);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("survive SIGKILL"));
}

TEST_F(GangReconnectWhileStopping, AnEarlierExitThatTheNodeTellsWhenItIsBackIsTheFirstCause) {
  Rig timed(2, 2);
  timed.Run();
  timed.Exit(0, SIGABRT, 2'000);
  timed.Feed(NodeLeft{1});
  timed.Stopped(0);
  NodeJoined joined = timed.Node(1, MemberState::kStopped, 1);
  joined.members[1].exit = gang::Exit{.status = ExitCode(7), .time_ns = 1'000};
  timed.Feed(joined);
  EXPECT_EQ(timed.gang.last_fault()->task, 3U);
}

TEST_F(GangReconnectWhileStopping, ANodeThatIsSilentIsNotWaitedFor) {
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Feed(NodeLeft{1});
  rig.Stopped(0);
  rig.Silence(1);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangReconnect, AGangThatIsGivenUpDoesNotWaitForANodeThatGoesAway) {
  rig.LoseSupervisor(2);
  rig.Stopped(0);
  rig.Feed(NodeLeft{1});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  rig.Join(1, MemberState::kStopped, 1);
  EXPECT_TRUE(rig.Did<FinishGang>());
}

// Its musterd is killing what the supervisor has left.
TEST(GangReconnectHealed, ANodeWhereADeadSupervisorsProcessesAreStillKilledHasNotStopped) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Run();
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  ASSERT_EQ(rig.gang.state(), State::kRunning);
  NodeJoined joined = rig.Node(1, MemberState::kExited, 1);
  joined.members[0].exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
  rig.Feed(joined);
  EXPECT_FALSE(rig.gang.nodes()[1].stopped);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(1));
  EXPECT_TRUE(rig.Did<StopGeneration>()->older) << "the others keep their leases";
  rig.Exit(0, ExitCode(7));
  rig.Stopped(0);
  rig.Stopped(2);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.Stopped(1);
  EXPECT_EQ(rig.gang.generation(), 3U);
}

}  // namespace
}  // namespace muster::gang
