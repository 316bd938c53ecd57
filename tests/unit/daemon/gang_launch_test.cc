// A node is dead before its part of the step could be launched: srun gives up, and with it the script.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// n0 to n2 of four have joined.
class GangLaunch : public ::testing::Test {
 protected:
  explicit GangLaunch(uint32_t spares = 0) : rig(Rig::WithSpares(4, 1, spares)) {
    rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
    for (const uint32_t node : {0, 1, 2}) rig.Join(node);
  }
  Rig rig;
};

TEST_F(GangLaunch, ADeadNodeLeadsToARequeueBeforeSrunHasGivenUp) {
  rig.Feed(AbsentProbed{{3}});
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  ASSERT_TRUE(rig.Did<RequeueJob>());
  EXPECT_TRUE(rig.Did<RequeueJob>()->launch_failed);
  EXPECT_THAT(rig.Did<RequeueJob>()->dead, ElementsAre(3));
  EXPECT_FALSE(rig.Did<StartGeneration>());
}

TEST_F(GangLaunch, OneThatLivesIsWaitedFor) {
  rig.Feed(AbsentProbed{});
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  rig.Join(3);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  rig.Feed(AbsentProbed{{3}});  // said too late
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST_F(GangLaunch, TasksThatEndedMeanwhileWaitForWhatBecameOfTheNode) {
  rig.LoseSupervisor(0);
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  rig.LoseSupervisor(1);
  rig.Feed(NodeLeft{1});
  rig.Feed(AbsentProbed{{3}});
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  EXPECT_THAT(rig.Did<RequeueJob>()->dead, ElementsAre(3)) << "n1 lives: Slurm must not take it for dead";
}

TEST_F(GangLaunch, TasksThatEndedThoughAllNodesLiveWereEndedOnPurpose) {
  rig.LoseSupervisor(0);
  rig.Feed(AbsentProbed{});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.Did<RequeueJob>());
}

TEST_F(GangLaunch, TheOthersMayBeMissingForAnotherReason) {
  rig.LoseSupervisor(0);
  rig.Feed(NodeLeft{0});
  rig.LoseSupervisor(1);
  rig.Feed(NodeLeft{1});
  EXPECT_EQ(rig.gang.state(), State::kJoining);
  rig.Join(3);
  EXPECT_EQ(rig.gang.state(), State::kFinished) << "nobody is waited for any more";
}

TEST_F(GangLaunch, ANodeThatRegistersWhenItsTasksHaveEndedCountsToo) {
  Rig late(3, 1);
  late.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  for (const uint32_t node : {1, 2}) {
    NodeJoined joined = late.Node(node, MemberState::kStopped);
    joined.members[0].exit = gang::Exit{.status = 9, .supervisor_lost = true};
    late.Feed(joined);
  }
  EXPECT_EQ(late.gang.state(), State::kJoining);
  late.Feed(AbsentProbed{});
  EXPECT_EQ(late.gang.state(), State::kFinished);
}

TEST_F(GangLaunch, WhoHearsNoMajorityMayItselfBeCutOff) {
  for (const auto& [nodes, joined, dead] :
       {std::tuple(4U, std::vector<uint32_t>{1, 2}, std::vector<uint32_t>{0, 3}), {2, {0}, {1}}}) {
    Rig cut(nodes, 1);
    cut.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
    for (const uint32_t node : joined) cut.Join(node);
    cut.Feed(AbsentProbed{dead});
    EXPECT_EQ(cut.gang.state(), State::kJoining) << nodes;
    cut.LoseSupervisor(joined.front());
    cut.Feed(AbsentProbed{dead});
    EXPECT_EQ(cut.gang.state(), State::kFinished) << nodes;
    EXPECT_FALSE(cut.Did<RequeueJob>()) << nodes;
  }
}

TEST_F(GangLaunch, OneThatHasJoinedAloneWaitsForAnother) {
  Rig alone(4, 1);
  alone.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  alone.Join(2);
  alone.LoseSupervisor(2);
  alone.Feed(AbsentProbed{{3}});
  EXPECT_EQ(alone.gang.state(), State::kJoining);
  alone.Join(0);
  alone.Feed(AbsentProbed{{3}});
  EXPECT_EQ(alone.gang.state(), State::kRequeueing);
}

TEST_F(GangLaunch, AJobThatMayNotBeRequeuedEndsAndSaysWhy) {
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = false});
  rig.Feed(AbsentProbed{{3}});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("dead or cut off when the step was launched"));
}

class GangLaunchSpare : public GangLaunch {
 protected:
  GangLaunchSpare() : GangLaunch(1) {}
};

TEST_F(GangLaunchSpare, ANodeWhoseTasksHaveEndedIsNotWaitedFor) {
  rig.LoseSupervisor(1);
  rig.Feed(NodeLeft{1});
  rig.Join(3);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST_F(GangLaunchSpare, ASpareDoesNotHelpForSrunEndsThemAll) {
  rig.Feed(AbsentProbed{{3}});
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

}  // namespace
}  // namespace muster::gang
