// What the record keeps of a gang, and the same fault again: what the next coordinator and the next generation know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

// Four nodes with two tasks each, of which n3 is the spare.
class GangMemory : public ::testing::Test {
 protected:
  GangMemory() { rig.Run(); }
  // As a coordinator that takes over, before any node has said where it is.
  [[nodiscard]] Rig Successor() const { return Rig(settings, rig.gang.Remember()); }
  Settings settings = Rig::WithSpares(4, 2, 1);
  Rig rig{settings};
};

TEST_F(GangMemory, ANewGangRemembersNothing) {
  const Memory memory = Rig(settings).gang.Remember();
  EXPECT_FALSE(memory.running);
  EXPECT_EQ(memory.generation, 0U);
  EXPECT_TRUE(memory.active.empty());
}

TEST_F(GangMemory, WhatIsRememberedIsRememberedAgain) {
  rig.Feed(Progressed{7});
  rig.Restart(0);
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Feed(NodeLeft{2});
  rig.Feed(NodeSick{3, "Xid 79"});
  const Memory first = rig.gang.Remember();
  EXPECT_TRUE(first.running);
  EXPECT_EQ(first.generation, 3U);
  EXPECT_THAT(first.user_fault_times, SizeIs(1));
  RestartCounts restarts = NoRestarts();
  restarts["user"] = restarts["infrastructure"] = 1;
  EXPECT_EQ(first.restarts, restarts);
  EXPECT_EQ(first.max_step, 7U);
  EXPECT_THAT(first.active, ElementsAre(0, 3, 2));
  EXPECT_THAT(first.lost, ElementsAre(1));
  EXPECT_THAT(first.away, ElementsAre(2));
  EXPECT_THAT(first.excluded, ElementsAre(Pair(3, "Xid 79")));
  EXPECT_THAT(first.task_counts, ElementsAre(2, 2, 2, 2));

  const Rig next(settings, first);
  EXPECT_EQ(next.gang.state(), State::kRecovering);
  const Memory second = next.gang.Remember();
  EXPECT_EQ(second.running, first.running);
  EXPECT_EQ(second.generation, first.generation);
  EXPECT_EQ(second.user_fault_times, first.user_fault_times);
  EXPECT_EQ(second.restarts, first.restarts);
  EXPECT_EQ(second.restarts_without_progress, first.restarts_without_progress);
  EXPECT_EQ(second.max_step, first.max_step);
  EXPECT_EQ(second.last_signature, first.last_signature);
  EXPECT_EQ(second.active, first.active);
  EXPECT_EQ(second.lost, first.lost);
  EXPECT_EQ(second.away, first.away);
  EXPECT_EQ(second.excluded, first.excluded);
  EXPECT_EQ(second.task_counts, first.task_counts);
}

TEST_F(GangMemory, NumbersOfNodesThatTheStepDoesNotHaveAreIgnored) {
  const Rig next(Rig::SettingsOf(2, 1), {.generation = 1,
                                         .running = true,
                                         .active = {0, 9},
                                         .lost = {7},
                                         .ended = {5},
                                         .away = {8},
                                         .excluded = {{6, "x"}},
                                         .task_counts = {1, 1, 1}});
  EXPECT_THAT(next.gang.active(), ElementsAre(0));
}

TEST_F(GangMemory, RanksStayWhereTheRecordHasThem) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  Rig next = Successor();
  for (const uint32_t node : {0, 2, 3}) next.Join(node, MemberState::kRunning, 2);
  EXPECT_EQ(next.gang.state(), State::kRunning) << "a lost node is not waited for again";
  EXPECT_THAT(next.gang.active(), ElementsAre(0, 3, 2));
  EXPECT_EQ(next.gang.members()[6].rank, 2U);
}

// The coordinator's own node dies: its successor has never heard it, and must know what fits in its place.
TEST_F(GangMemory, ASpareReplacesANodeThatOnlyTheOldCoordinatorKnew) {
  Rig next = Successor();
  for (const uint32_t node : {0, 2}) next.Join(node, MemberState::kRunning, 1);
  next.Join(3);
  next.Silence(1);
  next.StopAll();
  ASSERT_TRUE(next.Did<StartGeneration>());
  EXPECT_TRUE(next.Did<StartGeneration>()->durable);
  EXPECT_THAT(next.gang.active(), ElementsAre(0, 3, 2));
  EXPECT_EQ(next.gang.members()[4].rank, 4U);
}

TEST_F(GangMemory, ASpareMustFitANodeThatOnlyTheOldCoordinatorKnew) {
  Memory memory = rig.gang.Remember();
  memory.task_counts[1] = 3;
  Rig next(settings, memory);
  for (const uint32_t node : {0, 2}) next.Join(node, MemberState::kRunning, 1);
  next.Join(3);
  next.Silence(1);
  next.StopAll();
  EXPECT_EQ(next.gang.state(), State::kRequeueing);
}

TEST_F(GangMemory, AHealedNodeThatStillRunsAnOldGenerationIsStoppedAndTheOthersRunOn) {
  rig.Silence(1);
  rig.StopAll();
  rig.ExecuteAll();
  Rig next = Successor();
  next.Join(0, MemberState::kRunning, 2);
  next.Join(1, MemberState::kRunning, 1);
  next.Join(2, MemberState::kRunning, 2);
  next.Join(3, MemberState::kRunning, 2);
  EXPECT_EQ(next.gang.state(), State::kRunning);
  ASSERT_TRUE(next.Did<StopGeneration>());
  EXPECT_THAT(next.Did<StopGeneration>()->nodes, ElementsAre(1));
  EXPECT_TRUE(next.Did<StopGeneration>()->older) << "the others keep their leases";
  next.Stopped(1);
  EXPECT_EQ(next.gang.state(), State::kRunning);
  EXPECT_TRUE(next.gang.IsSpare(1));
}

// Its successor finds the same fault in the members' states, and counts it then.
TEST_F(GangMemory, AFaultWhoseGenerationIsStillBeingStoppedIsNotCountedTwice) {
  rig.Exit(0, ExitCode(1));
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  Rig next = Successor();
  NodeJoined failed = next.Node(0, MemberState::kStopped, 1);
  failed.members[0].exit = gang::Exit{.status = ExitCode(1), .time_ns = 1};
  next.Feed(failed);
  next.Join(1, MemberState::kStopped, 1);
  next.Join(2, MemberState::kStopped, 1);
  next.Join(3);
  next.StopAll();
  EXPECT_EQ(next.gang.user_faults(), 1U);
  EXPECT_THAT(next.gang.Remember().user_fault_times, SizeIs(1)) << "it has had its generation by now";
}

// Its own daemon made it up, because nobody saw the end: no program is to blame.
TEST_F(GangMemory, AMemberThatIsStoppedAndNobodyKnowsWhyCostsNothing) {
  rig.Feed(NodeLeft{1});
  rig.Join(1, MemberState::kStopped, 1);
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 2U);
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

// A node that was cut off together with the old coordinator may have run a generation that the record does not know.
TEST_F(GangMemory, NumbersThatALateNodeHasSeenAreNotUsedAgain) {
  Rig next = Successor();
  for (const uint32_t node : {0, 2}) next.Join(node, MemberState::kRunning, 1);
  next.Join(3);
  next.Silence(1);
  next.StopAll();
  next.ExecuteAll();
  ASSERT_EQ(next.gang.generation(), 2U);
  next.Join(1, MemberState::kStopped, 4);
  next.Exit(0, ExitCode(1));
  next.StopAll();
  EXPECT_EQ(next.gang.generation(), 5U);
}

TEST_F(GangMemory, SigtermIsNotForgotten) {
  rig.Feed(Terminating{0, SIGTERM});
  EXPECT_TRUE(rig.Did<Persist>());
  Rig next = Successor();
  next.Join(0, MemberState::kRunning, 1);
  next.Join(1, MemberState::kStopped, 1);
  next.Join(2, MemberState::kRunning, 1);
  next.Join(3);
  next.StopAll();
  EXPECT_FALSE(next.Did<StartGeneration>());
  EXPECT_EQ(next.gang.state(), State::kFinished);
}

TEST_F(GangMemory, AfterSigtermMembersThatHaveEndedMeanwhileDoNotStopTheOthersFromCheckpointing) {
  rig.Feed(Terminating{0, SIGTERM});
  Rig next = Successor();
  NodeJoined ended = next.Node(0, MemberState::kExited, 1);
  for (MemberInfo& member : ended.members) member.exit = gang::Exit{.status = SIGTERM};
  next.Feed(ended);
  next.Join(1, MemberState::kRunning, 1);
  next.Join(2, MemberState::kRunning, 1);
  next.Join(3);
  EXPECT_FALSE(next.Did<StopGeneration>());
  EXPECT_EQ(next.gang.state(), State::kRunning);
}

TEST_F(GangMemory, ARecordOfTheFirstVersionMeansTheFirstNodesOfTheStep) {
  Rig next(settings, {.generation = 1, .running = true});
  for (const uint32_t node : {0, 1, 2}) next.Join(node, MemberState::kRunning, 1);
  next.Join(3);
  EXPECT_EQ(next.gang.state(), State::kRunning);
  EXPECT_THAT(next.gang.active(), ElementsAre(0, 1, 2));
}

// ---- the same fault again

class GangSameFault : public ::testing::Test {
 protected:
  GangSameFault() { rig.Run(); }
  void Fault(const std::string& signature) {
    rig.Feed(MemberExited{0, rig.gang.generation(), {.status = ExitCode(1), .signature = signature}});
    rig.StopAll();
    rig.ExecuteAll();
  }
  Rig rig{2, 1, 100};
};

TEST_F(GangSameFault, TheSameTwiceWithoutProgressEndsTheGangAndSaysSo) {
  Fault("KeyError: 'x'");
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Feed(MemberExited{1, 2, {.status = ExitCode(1), .signature = "KeyError: 'x'"}});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("the same fault as the last time"));
}

TEST_F(GangSameFault, ProgressInBetweenMakesItAnother) {
  Fault("KeyError: 'x'");
  rig.Feed(Progressed{1});
  Fault("KeyError: 'x'");
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangSameFault, AnotherFaultIsAnother) {
  Fault("KeyError: 'x'");
  Fault("ValueError");
  Fault("KeyError: 'x'");
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangSameFault, WhatCannotBeToldApartIsNeverTheSame) {
  Fault("");
  Fault("");
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangSameFault, ACoordinatorThatTakesOverRemembersIt) {
  Fault("KeyError: 'x'");
  Rig next(rig.gang.settings(), rig.gang.Remember());
  next.Join(0, MemberState::kRunning, 2);
  next.Join(1, MemberState::kRunning, 2);
  next.Feed(MemberExited{0, 2, {.status = ExitCode(1), .signature = "KeyError: 'x'"}});
  next.StopAll();
  EXPECT_EQ(next.gang.state(), State::kFinished);
}

// ---- a hang

TEST_F(GangSameFault, AHangIsReportedWithTheStacksAndIsFree) {
  rig.Feed(
      Hung{.task = 1, .generation = 1, .what = "rank 1 has not entered step 5", .report = "rank 1: read()"});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 2U);
  EXPECT_EQ(rig.gang.user_faults(), 0U);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("rank 1 has not entered step 5"));
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("rank 1: read()"));
}

TEST_F(GangSameFault, AHangOfAnotherGenerationOrAfterSigtermIsIgnored) {
  rig.Feed(Hung{.task = 1, .generation = 9});
  EXPECT_TRUE(rig.actions.empty());
  rig.Feed(Terminating{0, SIGTERM});
  rig.Feed(Hung{.task = 1, .generation = 1});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangSameFault, TheSameHangTwiceWithoutProgressEndsTheGang) {
  for (uint64_t generation = 1; generation <= 2; ++generation) {
    rig.Feed(Hung{.task = 1, .generation = generation, .what = "it hangs", .signature = "allreduce"});
    rig.StopAll();
  }
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangMemory, ADrainThatWasNotCarriedOutYetIsTheNextCoordinatorsToo) {
  rig.Feed(DrainNode{1, "firmware"});
  EXPECT_TRUE(rig.Did<Persist>());
  Rig next = Successor();
  for (const uint32_t node : {0, 1, 2, 3})
    next.Join(node, node == 3 ? MemberState::kWaiting : MemberState::kRunning, node == 3 ? 0 : 1);
  ASSERT_TRUE(next.Did<TellMembers>());
  EXPECT_THAT(next.Did<TellMembers>()->reason, HasSubstr("node n1 is drained: firmware"));
  next.Feed(CheckpointCommitted{10});
  next.StopAll();
  EXPECT_THAT(next.gang.active(), ElementsAre(0, 3, 2));
  EXPECT_THAT(next.gang.Remember().excluded, ElementsAre(Pair(1, "firmware")));
}

TEST_F(GangMemory, MembersAreToldAgainThatSlurmEndsTheJob) {
  rig.Feed(Terminating{0, SIGTERM, false});
  ASSERT_TRUE(rig.Did<TellMembers>());
  Rig next = Successor();
  for (const uint32_t node : {0, 1, 2, 3})
    next.Join(node, node == 3 ? MemberState::kWaiting : MemberState::kRunning, node == 3 ? 0 : 1);
  ASSERT_TRUE(next.Did<TellMembers>());
  EXPECT_TRUE(next.Did<TellMembers>()->exit);
}

TEST_F(GangMemory, ADrainThatIsTakenBackIsNotTheNextCoordinators) {
  rig.Feed(DrainNode{1, "firmware"});
  rig.Feed(NodeReturned{1});
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_TRUE(rig.gang.Remember().draining.empty());
}

TEST_F(GangMemory, ASpareWhoseTasksHaveEndedIsNeverTakenForDead) {
  for (const uint32_t task : {6, 7}) rig.LoseSupervisor(task);
  rig.Feed(NodeLeft{3});
  ASSERT_THAT(rig.gang.Remember().ended, ElementsAre(3));
  Rig next = Successor();
  EXPECT_THAT(next.gang.Remember().ended, ElementsAre(3));
  for (const uint32_t node : {0, 2}) next.Join(node, MemberState::kRunning, 1);
  next.Silence(1);
  EXPECT_EQ(next.gang.state(), State::kStopping) << "it is not waited for";
  next.StopAll();
  ASSERT_TRUE(next.Did<RequeueJob>());
  EXPECT_THAT(next.Did<RequeueJob>()->dead, ElementsAre(1));
}

TEST_F(GangMemory, ARequeueThatWasOrderedIsOrderedAgainOnceItIsKnownWhereTheScriptRuns) {
  Rig next(Rig::SettingsOf(3, 1),
           {.generation = 4, .running = true, .active = {0, 1, 2}, .lost = {0}, .requeueing = true});
  EXPECT_EQ(next.gang.state(), State::kRequeueing);
  EXPECT_EQ(next.TimerSet(Timer::kRequeue), kRequeueTimeoutMs);
  next.Join(1, MemberState::kStopped, 4);
  EXPECT_TRUE(next.actions.empty());
  next.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  ASSERT_TRUE(next.Did<RequeueJob>());
  EXPECT_THAT(next.Did<RequeueJob>()->dead, ElementsAre(0));
  next.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  EXPECT_FALSE(next.Did<RequeueJob>()) << "once";
}

}  // namespace
}  // namespace muster::gang
