// Two musterds and a gang of one task on each: what supervisors are told, when daemons stay and when they go.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <initializer_list>

#include "net/roce/settings.h"
#include "tests/unit/daemon/daemon_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using wire::FinishAs;
using wire::MemberState;
using wire::Type;

constexpr int kExitSeven = 7 << 8;

class DaemonTest : public TwoDaemons {
 protected:
  void Join(const std::string& options = "") {
    for (const uint32_t node : {0, 1})
      ASSERT_TRUE(members_[node].Join(daemons_[node]->socket(), "n[1-2]", options));
  }
  void ExpectStart(uint64_t generation) {
    for (TestSupervisor& member : members_) {
      const auto start = member.Next(Type::kStart);
      ASSERT_TRUE(start);
      EXPECT_EQ(start->As<wire::Start>().generation, generation);
      environment_ = start->environment;
      member.Executed(generation);
    }
  }
  void StopAll(uint64_t generation) {
    for (TestSupervisor& member : members_) {
      const auto stop = member.Next(Type::kStop);
      ASSERT_TRUE(stop);
      EXPECT_EQ(stop->As<wire::Stop>().generation, generation);
      member.Stopped(generation);
    }
  }
  void ExpectFinish(uint32_t node, FinishAs as, uint32_t code = 0) {
    const auto finish = members_[node].Next(Type::kFinish);
    ASSERT_TRUE(finish) << "node " << node;
    EXPECT_EQ(finish->As<wire::Finish>().as, static_cast<uint32_t>(as)) << "node " << node;
    if (as == FinishAs::kCode) {
      EXPECT_EQ(finish->As<wire::Finish>().code, code);
    }
  }

  // What a second gang of the same user's is told first, on both nodes. Only the node that leads the first gang's test of the
  // links has ended it. `fabric_news`: what the watch of the first node's ports has said in between; `later`: how much later it is.
  Type FirstOrderAfterATest(int wait_status, const std::string& verdict,
                            const std::vector<std::string>& fabric_news = {},
                            LoopClock::Time::duration later = {}) {
    Join("preflight=quick");
    uint64_t test = 0;
    for (TestSupervisor& member : members_) {
      const auto order = member.Next(Type::kTestLinks);
      if (!order) return {};
      test = order->As<wire::TestLinks>().test;
      // /dev/null where the host has no roce.yaml: the program would look for that in vain.
      EXPECT_EQ(order->environment.at(wire::kLinksSettings), roce::SettingsFile(roce::kSettingsPath));
    }
    members_[0].LinksTested(test, wait_status, verdict);
    ExpectStart(1);
    TestDaemon& daemon = *daemons_[0];
    daemon.On([&] { daemon.agent().FabricSaid(fabric_news, ""); });
    clock_.Move(later);
    TestSupervisor again[2] = {TestSupervisor(StepHello(13, 0, 2)), TestSupervisor(StepHello(13, 1, 2))};
    for (const uint32_t node : {0, 1})
      EXPECT_TRUE(again[node].Join(daemons_[node]->socket(), "n[1-2]", "preflight=quick"));
    const auto first = again[0].Next();
    const auto second = again[1].Next();
    EXPECT_TRUE(first && second && first->type == second->type);
    return first ? first->type : Type{};
  }

  TestSupervisor members_[2] = {TestSupervisor(StepHello(12, 0, 2)), TestSupervisor(StepHello(12, 1, 2))};
  std::map<std::string, std::string> environment_;  // of the last task started
};

TEST_F(DaemonTest, AGangJoinsStartsAndSucceeds) {
  Join();
  ExpectStart(1);
  EXPECT_EQ(environment_["RANK"], "1");
  EXPECT_EQ(environment_["WORLD_SIZE"], "2");
  EXPECT_EQ(environment_["MASTER_ADDR"], "n1");
  EXPECT_EQ(environment_["MUSTER_GENERATION"], "1");
  for (TestSupervisor& member : members_) member.Exited(1, 0);
  for (const uint32_t node : {0, 1}) ExpectFinish(node, FinishAs::kOwnStatus);
}

TEST_F(DaemonTest, AFailureStopsBothNodesAndTheNextGenerationKnowsWhy) {
  Join();
  ExpectStart(1);
  members_[1].Exited(1, kExitSeven, "python3", "ValueError: no such rank\n");
  StopAll(1);
  ExpectStart(2);
  EXPECT_THAT(environment_["MUSTER_RESTART_CAUSE"],
              HasSubstr("rank 1 on n2 (python3, pid 4711) exited with code 7"));
  EXPECT_THAT(members_[1].reports, HasSubstr("| ValueError: no such rank"));
}

// A coordinator that takes over meanwhile finds the fault in the members' states, and charges it then.
TEST_F(DaemonTest, TheRecordChargesAFaultWhenItsGenerationHasStopped) {
  Join();
  ExpectStart(1);
  members_[1].Exited(1, kExitSeven);
  for (TestSupervisor& member : members_) ASSERT_TRUE(member.Next(Type::kStop));
  TestDaemon& daemon = *daemons_[1];
  const auto record = [&daemon] {
    return daemon.On([&daemon] { return daemon.coordinators().Find("12.0")->Record(); });
  };
  EXPECT_EQ(record().user_faults, 1U);
  EXPECT_THAT(record().user_fault_times, IsEmpty());
  for (TestSupervisor& member : members_) member.Stopped(1);
  ExpectStart(2);
  EXPECT_EQ(record().user_faults, 1U);
  EXPECT_THAT(record().user_fault_times, SizeIs(1));
}

// The start ends what still measures on the other node, which has found nothing either.
TEST_F(DaemonTest, LinksThatANodeHasFoundGoodAreKnownOnTheOthers) {
  EXPECT_EQ(FirstOrderAfterATest(0, R"({"findings": []})"), Type::kStart);
}

// After preflight_age, by default.
TEST_F(DaemonTest, LinksThatWereFoundGoodLongAgoAreTestedAgain) {
  EXPECT_EQ(FirstOrderAfterATest(0, R"({"findings": []})", {}, std::chrono::minutes(15)), Type::kTestLinks);
}

TEST_F(DaemonTest, LinksWithAFindingAreTestedAgain) {
  EXPECT_EQ(FirstOrderAfterATest(1 << 8, R"({"findings": [{"node": "n1", "text": "slow"}]})"),
            Type::kTestLinks);
}

TEST_F(DaemonTest, LinksOfANodeWhosePortHasChangedSinceAreTestedAgain) {
  EXPECT_EQ(FirstOrderAfterATest(0, R"({"findings": []})", {"roce0 lost its link"}), Type::kTestLinks);
}

TEST_F(DaemonTest, ANodeWhoseFabricIsSickIsNotHealthyUntilTheFabricIsWell) {
  Join();
  ExpectStart(1);
  TestDaemon& daemon = *daemons_[0];
  const auto healthy = [&daemon] { return daemon.health().healthy(); };
  ASSERT_EQ(daemon.On(healthy), true);
  daemon.On([&daemon] { daemon.agent().FabricSaid({}, "roce0 has had no link for 10 s"); });
  EXPECT_EQ(daemon.On(healthy), false);
  daemon.On([&daemon] { daemon.agent().FabricSaid({}, ""); });
  EXPECT_EQ(daemon.On(healthy), true);
}

TEST_F(DaemonTest, BytesThatAreNoTextLoseNeitherTheReportNorTheNextStart) {
  Join();
  ExpectStart(1);
  members_[0].Exited(1, kExitSeven, std::string("tr\xff\0LD_PRELOAD=x", 16), "caf\xe9 \xff\xfe\n");
  StopAll(1);
  ExpectStart(2);
  EXPECT_THAT(members_[0].reports, HasSubstr("| caf\xe9 \xff\xfe"));
  EXPECT_THAT(environment_["MUSTER_RESTART_CAUSE"], HasSubstr("(tr??LD_PRELOAD=x, pid 4711)"));
  EXPECT_FALSE(environment_.contains("LD_PRELOAD"));
}

TEST_F(DaemonTest, WhenTheLimitIsUsedUpOnlyTheCauseKeepsItsStatus) {
  Join("restarts=0");
  ExpectStart(1);
  members_[1].Exited(1, kExitSeven);
  StopAll(1);
  ExpectFinish(0, FinishAs::kZero);
  ExpectFinish(1, FinishAs::kOwnStatus);
  EXPECT_THAT(members_[1].reports, HasSubstr("limit of 0 restarts"));
}

TEST_F(DaemonTest, ASupervisorThatIsKilledEndsTheGangAtOnce) {
  Join();
  ExpectStart(1);
  members_[0].Leave();
  ASSERT_TRUE(members_[1].Next(Type::kStop));
  members_[1].Stopped(1);
  ExpectFinish(1, FinishAs::kCode, 1);
  EXPECT_THAT(members_[1].reports, HasSubstr("rank 0 on n1: the task was ended from outside"));
}

TEST_F(DaemonTest, MembersRunOnWhenTheCoordinatorsDaemonRestarts) {
  Join();
  ExpectStart(1);
  daemons_[1].reset();
  StartDaemon(1);
  ASSERT_TRUE(members_[1].Rejoin(daemons_[1]->socket(), MemberState::kRunning, 1));
  for (TestSupervisor& member : members_) member.Exited(1, 0);
  for (const uint32_t node : {0, 1}) ExpectFinish(node, FinishAs::kOwnStatus);
}

TEST_F(DaemonTest, MembersRunOnWhenAnotherNodesDaemonRestarts) {
  Join();
  ExpectStart(1);
  daemons_[0].reset();
  StartDaemon(0);
  ASSERT_TRUE(members_[0].Rejoin(daemons_[0]->socket(), MemberState::kRunning, 1));
  for (TestSupervisor& member : members_) member.Exited(1, 0);
  for (const uint32_t node : {0, 1}) ExpectFinish(node, FinishAs::kOwnStatus);
}

TEST_F(DaemonTest, AFailureWhileTheCoordinatorIsAwayIsSeenWhenItIsBack) {
  Join();
  ExpectStart(1);
  daemons_[1].reset();
  members_[0].Exited(1, kExitSeven);
  StartDaemon(1);
  ASSERT_TRUE(members_[1].Rejoin(daemons_[1]->socket(), MemberState::kRunning, 1));
  StopAll(1);
  ExpectStart(2);
  EXPECT_THAT(environment_["MUSTER_RESTART_CAUSE"],
              HasSubstr("rank 0 on n1 (train, pid 4711) exited with code 7"));
}

TEST_F(DaemonTest, ASupervisorThatDoesNotComeBackAfterARestartEndsTheGang) {
  Join();
  ExpectStart(1);
  daemons_[0].reset();
  StartDaemon(0);
  clock_.Move(kReconnect);
  ASSERT_TRUE(members_[1].Next(Type::kStop));
  members_[1].Stopped(1);
  ExpectFinish(1, FinishAs::kCode, 1);
}

TEST_F(DaemonTest, AStopIsCarriedThroughThoughTheCoordinatorsDaemonRestartsInBetween) {
  Join();
  ExpectStart(1);
  members_[0].Exited(1, kExitSeven);
  for (TestSupervisor& member : members_) ASSERT_TRUE(member.Next(Type::kStop));
  members_[0].Stopped(1);
  daemons_[1].reset();
  StartDaemon(1);
  ASSERT_TRUE(members_[1].Rejoin(daemons_[1]->socket(), MemberState::kRunning, 1));
  ASSERT_TRUE(members_[1].Next(Type::kStop));
  members_[1].Stopped(1);
  ExpectStart(2);
}

TEST_F(DaemonTest, DaemonsThatMissedTheEndLearnItAndItsExitCodes) {
  Join("restarts=0");
  ExpectStart(1);
  members_[1].Exited(1, kExitSeven);
  StopAll(1);
  ExpectFinish(0, FinishAs::kZero);
  ExpectFinish(1, FinishAs::kOwnStatus);
  for (auto& daemon : daemons_) daemon.reset();
  for (const uint32_t node : {0, 1}) StartDaemon(node);
  ASSERT_TRUE(members_[1].Rejoin(daemons_[1]->socket(), MemberState::kStopped, 1, kExitSeven));
  ExpectFinish(1, FinishAs::kOwnStatus);
  ASSERT_TRUE(members_[0].Rejoin(daemons_[0]->socket(), MemberState::kStopped, 1, SIGKILL));
  ExpectFinish(0, FinishAs::kZero);
}

TEST_F(DaemonTest, TheJoinTimeoutNamesTheNodeThatIsMissing) {
  ASSERT_TRUE(members_[1].Join(daemons_[1]->socket(), "n[1-2]", "join=1s"));
  ExpectFinish(1, FinishAs::kCode, 1);
  EXPECT_THAT(members_[1].reports, HasSubstr("cannot start: after 1 s these have not joined: n1"));
}

TEST_F(DaemonTest, ANodeWhoseTasksAreNotCompleteEndsItsTasksToo) {
  wire::SupervisorHello half = StepHello(12, 0, 2);
  half.task_count = 3;
  half.local_task_count = 2;
  TestSupervisor member(half);
  ASSERT_TRUE(member.Join(daemons_[0]->socket(), "n[1-2]", "join=1s"));
  const auto refused = member.Next(Type::kRefused);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->Text(), HasSubstr("only 1 of the 2 tasks of n1 are here"));
}

TEST_F(DaemonTest, ANodeWhoseCoordinatorNeverAnswersSaysWhichAndWhy) {
  daemons_[1].reset();
  ASSERT_TRUE(members_[0].Join(daemons_[0]->socket(), "n[1-2]", "join=1s"));
  const auto refused = members_[0].Next(Type::kRefused);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->Text(), HasSubstr("no coordinator has started it: n2 at n2:"));
}

TEST_F(DaemonTest, ATaskOfAnotherStepIsNotLetIn) {
  Join();
  ExpectStart(1);
  for (const auto& change : std::initializer_list<std::function<void(wire::SupervisorHello&)>>{
           [](auto& h) {
             h.task_count = 3;
             h.task_id = 2;
           },
           [](auto& h) { h.uid = 1001; }, [](auto& h) { h.node_id = 1; }, [](auto& h) { h.node_count = 3; },
           [](auto&) {}}) {
    wire::SupervisorHello hello = StepHello(12, 0, 2);
    change(hello);
    TestSupervisor other(hello);
    EXPECT_FALSE(other.Join(daemons_[0]->socket(), "n[1-2]", ""));
  }
  EXPECT_TRUE(members_[0].Silent(100));
}

TEST_F(DaemonTest, StepsComeAndGoWithoutDisturbingOneAnother) {
  for (uint32_t job = 100; job < 120; ++job) {
    for (const uint32_t node : {0, 1}) {
      wire::SupervisorHello hello = StepHello(12, node, 2);
      hello.job_id = job;
      members_[node] = TestSupervisor(hello);
    }
    Join();
    ExpectStart(1);
    for (TestSupervisor& member : members_) member.Exited(1, 0);
    for (const uint32_t node : {0, 1}) ExpectFinish(node, FinishAs::kOwnStatus);
    for (TestSupervisor& member : members_) member.Leave();
  }
}

}  // namespace
}  // namespace muster
