// A new coordinator takes a gang over, and learns from the nodes where it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The record says: generation 5 runs, one restart has been used.
class GangRecovery : public ::testing::Test {
 protected:
  Rig rig{Rig::SettingsOf(3, 1),
          {.generation = 5, .running = true, .user_fault_times = {1}, .active = {0, 1, 2}}};
};

TEST_F(GangRecovery, WaitsForAllNodesBeforeItDecides) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Join(1, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kRecovering);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_FALSE(rig.Did<StopGeneration>());
}

TEST_F(GangRecovery, MembersThatAllRunRunOn) {
  for (const uint32_t node : {0, 1, 2}) rig.Join(node, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_EQ(rig.gang.generation(), 5U);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  EXPECT_FALSE(rig.Did<StopGeneration>());
  ASSERT_TRUE(rig.Did<StartGeneration>()) << "the agents learn the new term";
  EXPECT_EQ(rig.Did<StartGeneration>()->generation, 5U);
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(0, 1, 2));
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_EQ(rig.TimerSet(Timer::kJoin), -1);
}

TEST_F(GangRecovery, NodesThatNobodyCanTellDeadAreNotWaitedForForEver) {
  rig.Feed(Leads{});
  EXPECT_EQ(rig.TimerSet(Timer::kRecover), 60'000);
  rig.Join(1, MemberState::kStopped, 5);
  rig.Feed(TimerFired{Timer::kRecover});
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  ASSERT_TRUE(rig.Did<RequeueJob>());
  EXPECT_THAT(rig.Did<RequeueJob>()->reason,
              HasSubstr("60 s after the coordinator took over these are not here"));
  EXPECT_THAT(rig.Did<RequeueJob>()->reason, HasSubstr("node 0 of the step, node 2 of the step"));
  EXPECT_THAT(rig.Did<RequeueJob>()->dead, ::testing::IsEmpty()) << "nobody knows";
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(1));
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("the job is requeued"));
  EXPECT_EQ(rig.gang.user_faults(), 1U);
}

TEST_F(GangRecovery, AGangThatMayNotBeRequeuedEndsWhenNobodyCanTell) {
  rig.Feed(Leads{});
  rig.Join(1, MemberState::kStopped, 5);
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Feed(TimerFired{Timer::kRecover});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.gang.succeeded());
}

TEST_F(GangRecovery, AGangThatHasSucceededIsNotRequeuedWhenNobodyCanTell) {
  Rig done(Rig::SettingsOf(3, 1),
           {.generation = 5, .running = true, .active = {0, 1, 2}, .succeeding = true});
  done.Feed(Leads{});
  done.Join(1, MemberState::kStopped, 5);
  done.Feed(TimerFired{Timer::kRecover});
  done.StopAll();
  EXPECT_EQ(done.gang.state(), State::kFinished);
  EXPECT_TRUE(done.gang.succeeded());
}

TEST_F(GangRecovery, TheWaitForNodesIsLimitedOnceAndFromWhenTheyCanBeHeard) {
  Rig joining(3, 1);
  joining.Feed(Leads{});
  EXPECT_FALSE(joining.TimerSet(Timer::kRecover));
  joining.Join(0, MemberState::kRunning, 2);  // the record was behind
  EXPECT_EQ(joining.gang.state(), State::kRecovering);
  EXPECT_TRUE(joining.TimerSet(Timer::kRecover));
  joining.Feed(Leads{});
  EXPECT_FALSE(joining.TimerSet(Timer::kRecover));
}

TEST_F(GangRecovery, WhoHasRecoveredIsNotStranded) {
  rig.Feed(Leads{});
  for (const uint32_t node : {0, 1, 2}) rig.Join(node, MemberState::kRunning, 5);
  rig.Feed(TimerFired{Timer::kRecover});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Feed(Leads{});
  EXPECT_FALSE(rig.TimerSet(Timer::kRecover)) << "a new term of one that coordinates already";
}

// What they have saved is committed under that record.
TEST_F(GangRecovery, TheRecordOfAGenerationThatItDidNotKnowIsWrittenAlsoWhenThatHasFailed) {
  for (const uint32_t node : {0, 1}) rig.Join(node, MemberState::kRunning, 6);
  NodeJoined failed = rig.Node(2, MemberState::kExited, 6);
  failed.members[0].exit = gang::Exit{.status = SIGSEGV, .time_ns = 1};
  rig.Feed(failed);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  EXPECT_EQ(rig.gang.generation(), 6U);
  EXPECT_TRUE(rig.Did<Persist>());
}

TEST_F(GangRecovery, MembersThatHaveExitedZeroAreDone) {
  rig.Join(0, MemberState::kRunning, 5);
  NodeJoined done = rig.Node(1, MemberState::kExited, 5);
  done.members[0].exit = gang::Exit{.status = 0};
  rig.Feed(done);
  rig.Join(2, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(0, 0);
  rig.Exit(2, 0);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRecovery, MembersThatHaveAllExitedZeroAreASuccess) {
  for (const uint32_t node : {0, 1, 2}) {
    NodeJoined done = rig.Node(node, MemberState::kExited, 5);
    done.members[0].exit = gang::Exit{.status = 0};
    rig.Feed(done);
  }
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRecovery, AMemberThatFailedMeanwhileIsTheCauseOfTheNextGeneration) {
  rig.Join(0, MemberState::kRunning, 5);
  NodeJoined failed = rig.Node(1, MemberState::kExited, 5);
  failed.members[0].exit = gang::Exit{.status = ExitCode(7)};
  rig.Feed(failed);
  rig.Join(2, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.gang.user_faults(), 2U);
  rig.StopAll();
  EXPECT_EQ(rig.gang.last_fault()->task, 1U);
  EXPECT_EQ(rig.gang.generation(), 6U);
}

// The coordinator before has died with the word of it, and the member's program has ended meanwhile.
TEST_F(GangRecovery, AMemberThatCouldNotReadItsCheckpointIsNoFaultOfTheProgram) {
  rig.Join(0, MemberState::kRunning, 5);
  NodeJoined failed = rig.Node(1, MemberState::kExited, 5);
  failed.members[0].exit = gang::Exit{.status = ExitCode(1)};
  failed.checkpoint_bad =
      CheckpointBad{.task = 1, .generation = 5, .step = 64, .reason = "no", .manifest = "m"};
  rig.Feed(failed);
  rig.Join(2, MemberState::kRunning, 5);
  ASSERT_TRUE(rig.Did<RejectCheckpoint>());
  EXPECT_EQ(rig.Did<RejectCheckpoint>()->step, 64U);
  EXPECT_EQ(rig.gang.user_faults(), 1U) << "as before";
  rig.StopAll();
  EXPECT_EQ(rig.gang.last_fault()->cause, CauseClass::kInfrastructure);
  EXPECT_EQ(rig.gang.generation(), 6U);
}

TEST_F(GangRecovery, ABadCheckpointThatIsFoundWhileOthersAreWaitedForIsNoFaultOfTheProgram) {
  for (const uint32_t node : {0, 1}) rig.Join(node, MemberState::kRunning, 5);
  rig.Feed(CheckpointBad{.task = 1, .generation = 5, .step = 64, .reason = "no", .manifest = "m"});
  rig.Exit(1, ExitCode(1));
  NodeJoined last = rig.Node(2, MemberState::kRunning, 5);
  last.checkpoint_bad = CheckpointBad{.task = 2, .generation = 4, .step = 60};
  rig.Feed(last);
  ASSERT_TRUE(rig.Did<RejectCheckpoint>());
  EXPECT_EQ(rig.Did<RejectCheckpoint>()->step, 64U);
  EXPECT_EQ(rig.gang.user_faults(), 1U) << "as before";
}

TEST_F(GangRecovery, WhatWasFoundOfAnOlderGenerationsCheckpointIsNoCause) {
  NodeJoined node = rig.Node(0, MemberState::kRunning, 5);
  node.checkpoint_bad = CheckpointBad{.task = 0, .generation = 4, .step = 64};
  rig.Feed(node);
  for (const uint32_t other : {1, 2}) rig.Join(other, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_FALSE(rig.Did<RejectCheckpoint>());
}

TEST_F(GangRecovery, OfSeveralFailuresTheEarliestIsTheCause) {
  for (const uint32_t node : {0, 1, 2}) {
    NodeJoined failed = rig.Node(node, MemberState::kStopped, 5);
    failed.members[0].exit = gang::Exit{.status = ExitCode(1), .time_ns = node == 1 ? 1'000 : 2'000 + node};
    rig.Feed(failed);
  }
  rig.StopAll();
  EXPECT_EQ(rig.gang.last_fault()->task, 1U);
}

TEST_F(GangRecovery, AGenerationThatWasBeingStoppedIsStoppedOnAllNodesAndTheNextIsFree) {
  rig.Join(0, MemberState::kStopped, 5);
  rig.Join(1, MemberState::kRunning, 5);
  rig.Join(2, MemberState::kStopped, 5);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.Did<StopGeneration>()->generation, 5U);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 6U);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
}

TEST_F(GangRecovery, AGenerationNewerThanTheRecordIsTakenFromTheMembers) {
  rig.Join(0, MemberState::kStopped, 5);
  rig.Join(1, MemberState::kRunning, 6);  // the record is written behind
  rig.Join(2, MemberState::kStopped, 5);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.Did<StopGeneration>()->generation, 6U);
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 7U);
}

TEST_F(GangRecovery, AMemberOfAnOlderGenerationDoesNotRunWhatTheGangRuns) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Join(1, MemberState::kRunning, 6);
  rig.Join(2, MemberState::kRunning, 6);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  EXPECT_EQ(rig.Did<StopGeneration>()->generation, 6U);
}

TEST_F(GangRecovery, AnExitThatArrivesWhileNodesAreMissingWaitsForThem) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Join(1, MemberState::kRunning, 5);
  rig.Exit(0, ExitCode(7));
  EXPECT_EQ(rig.gang.state(), State::kRecovering);
  rig.Join(2, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  // Nobody has stopped yet, whoever speaks first.
  rig.Stopped(2);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Stopped(0);
  rig.Stopped(1);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.last_fault()->task, 0U);
}

TEST_F(GangRecovery, ANodeThatStopsWhileOthersAreMissingDoesNotRunOn) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Stopped(0);  // the coordinator before this one had ordered it
  rig.Join(1, MemberState::kRunning, 5);
  rig.Join(2, MemberState::kRunning, 5);
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 6U);
}

TEST_F(GangRecovery, ALostSupervisorEndsTheGang) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Join(1, MemberState::kRunning, 5);
  NodeJoined lost = rig.Node(2, MemberState::kStopped, 5);
  lost.members[0].exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
  rig.Feed(lost);
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<FinishGang>()->nodes, ElementsAre(0, 1, 2));
}

TEST_F(GangRecovery, WaitsForNoJoinTimeoutTheLeasesSayWhoIsMissing) {
  EXPECT_FALSE(rig.TimerSet(Timer::kJoin));
  rig.Join(0, MemberState::kRunning, 5);
  rig.Feed(TimerFired{Timer::kJoin});
  EXPECT_EQ(rig.gang.state(), State::kRecovering);
  EXPECT_TRUE(rig.actions.empty());
}

TEST_F(GangRecovery, ANodeThatIsNeverHeardIsLostAndNamed) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Join(1, MemberState::kRunning, 5);
  rig.Silence(2);
  EXPECT_THAT(rig.NoteOf("node_lost"), HasSubstr("has not been heard since this coordinator began"));
  ASSERT_TRUE(rig.Did<LoseNode>());
  EXPECT_EQ(rig.Did<LoseNode>()->node, 2U);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(0, 1));
}

TEST_F(GangRecovery, AfterSigtermAGenerationThatRunsIsTheLastOne) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  rig.Join(1, MemberState::kRunning, 5);
  rig.Join(2, MemberState::kRunning, 5);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  for (const uint32_t task : {0, 1, 2}) rig.Exit(task, SIGTERM);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangRecovery, AfterSigtermAGenerationThatWasBeingStoppedHasNoNext) {
  rig.Join(0, MemberState::kRunning, 5);
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  rig.Join(1, MemberState::kStopped, 5);
  rig.Join(2, MemberState::kRunning, 5);
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangRecovery, MembersThatAllWaitAreStarted) {
  for (const uint32_t node : {0, 1, 2}) rig.Join(node);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.Did<StartGeneration>()->generation, 6U);
}

// The record is written behind: it may still say `joining` when the first generation has been started.
TEST(GangStaleRecord, AMemberThatRunsAlreadyIsNotStartedBesides) {
  Rig rig(2, 1);
  rig.Join(0, MemberState::kRunning, 1);
  rig.Join(1);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.Did<StopGeneration>()->generation, 1U);
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 2U);
}

TEST(GangStaleRecord, MembersThatAllRunRunOn) {
  Rig rig(2, 1);
  rig.Join(0, MemberState::kRunning, 1);
  rig.Join(1, MemberState::kRunning, 1);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_EQ(rig.gang.generation(), 1U);
}

// Its members' shards are missing: what the others have saved is no checkpoint.
TEST(GangRecoveryOfALostNode, TheMembersOfANodeThatIsGoneAreOfTheGenerationStill) {
  for (const uint32_t gone : {0, 1}) {
    Rig rig{Rig::WithSpares(3, 2, 1),
            {.generation = 5, .running = true, .active = {0, 1}, .task_counts = {2, 2, 2}}};
    const uint32_t here = 1 - gone;
    rig.Join(here, MemberState::kRunning, 5);
    rig.Join(2);
    rig.Silence(gone);
    ASSERT_EQ(rig.gang.state(), State::kStopping);
    EXPECT_EQ(rig.gang.WorldSize(), 4U);
    EXPECT_EQ(rig.gang.members()[2 * here].rank, 2 * here);
  }
}

}  // namespace
}  // namespace muster::gang
