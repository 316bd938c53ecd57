// No room is left, or Slurm will end the job: it is requeued.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::HasSubstr;

// n0 is the batch host; n2 the spare.
class GangRequeue : public ::testing::Test {
 protected:
  GangRequeue() {
    rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
    rig.Run();
  }
  Rig rig{Rig::WithSpares(3, 1, 1)};
};

TEST_F(GangRequeue, TheBatchHostsDeathRequeuesTheJobThoughThereIsASpare) {
  rig.Silence(0);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  ASSERT_TRUE(rig.Did<RequeueJob>());
  EXPECT_EQ(rig.TimerSet(Timer::kRequeue), kRequeueTimeoutMs);
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_FALSE(rig.Did<FinishGang>()) << "Slurm ends the tasks";
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("the job's script ran there; the job is requeued"));
}

TEST_F(GangRequeue, NothingOfTheGangRunsWhenTheJobIsRequeued) {
  rig.Silence(0);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.Stopped(2);
  EXPECT_FALSE(rig.Did<RequeueJob>());
  rig.Stopped(1);
  EXPECT_TRUE(rig.Did<RequeueJob>());
}

TEST(GangRequeueSpareBatch, TheBatchHostsDeathCountsThoughItWasASpare) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Run();
  rig.Feed(JobFacts{.batch_node = 2, .can_requeue = true});
  rig.Silence(2);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST(GangRequeueSpareBatch, TheBatchHostMayBeKnownOnlyAfterItsDeath) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Run();
  rig.Silence(0);
  rig.StopAll();
  rig.ExecuteAll();
  ASSERT_EQ(rig.gang.state(), State::kRunning);
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangRequeue, AnotherNodesDeathDoesNotRequeueWhileThereIsASpare) {
  rig.Silence(1);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST_F(GangRequeue, NoRoomLeftRequeuesTheJob) {
  rig.Silence(2);
  rig.Silence(1);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("n1 is lost"));
}

TEST_F(GangRequeue, WithRequeueNoTheGangEnds) {
  for (const uint32_t node : {0, 1}) {
    Settings settings = Rig::WithSpares(2, 1, 0);
    settings.requeue = false;
    Rig no(settings);
    no.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
    no.Run();
    no.Silence(node);
    no.StopAll();
    EXPECT_EQ(no.gang.state(), State::kFinished);
    EXPECT_FALSE(no.Did<RequeueJob>());
    EXPECT_EQ(no.Did<FinishGang>()->code, 1);
  }
}

TEST_F(GangRequeue, AJobThatSlurmCannotRequeueEnds) {
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = false});
  rig.Silence(2);
  rig.Silence(1);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangRequeue, ATaskThatWasEndedFromOutsideIsNotRequeued) {
  rig.Silence(2);
  rig.LoseSupervisor(1);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangRequeue, RequeueThatFailsEndsTheGang) {
  rig.Silence(0);
  rig.StopAll();
  rig.Feed(RequeueFailed{"the job is not requeueable"});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("could not be requeued: the job is not requeueable"));
  ASSERT_TRUE(rig.Did<FinishGang>());
  EXPECT_EQ(rig.Did<FinishGang>()->code, 1);
  EXPECT_EQ(rig.TimerSet(Timer::kRequeue), -1);
}

TEST_F(GangRequeue, RequeueThatSlurmNeverCarriesOutEndsTheGang) {
  rig.Silence(0);
  rig.StopAll();
  rig.Feed(TimerFired{Timer::kRequeue});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("within 60 s"));
}

TEST_F(GangRequeue, SlurmsSigtermIsHowItEndsWhatItRequeues) {
  rig.Silence(0);
  rig.StopAll();
  rig.Feed(Terminating{1, SIGTERM});
  EXPECT_TRUE(rig.actions.empty());
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangRequeue, NothingIsStartedWhileTheJobIsRequeued) {
  rig.Silence(0);
  rig.StopAll();
  rig.Join(0, MemberState::kStopped, 1);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Silence(1);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangRequeue, AUserFaultBeyondTheBudgetIsNotRequeued) {
  for (int i = 0; i < 3; ++i) rig.Restart();
  rig.Silence(2);
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

// ---- the job's end is near

TEST_F(GangRequeue, NearTheTimeLimitACheckpointIsAskedForAndThenTheJobIsRequeued) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->save);
  EXPECT_FALSE(rig.Did<TellMembers>()->exit);
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 90'000);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Feed(CheckpointCommitted{100});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<RequeueJob>());
  EXPECT_THAT(rig.Did<RequeueJob>()->reason, HasSubstr("time limit"));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangRequeue, WithoutACheckpointInTimeItIsRequeuedAllTheSame) {
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 10'000});
  rig.Feed(TimerFired{Timer::kGrace});
  rig.StopAll();
  ASSERT_TRUE(rig.Did<RequeueJob>());
  EXPECT_THAT(rig.Did<RequeueJob>()->reason, HasSubstr("preempted"));
}

TEST_F(GangRequeue, TheEndIsNearOnlyOnce) {
  rig.Feed(EndNear{.left_ms = 90'000});
  rig.Feed(EndNear{.left_ms = 80'000});
  EXPECT_TRUE(rig.actions.empty());
}

TEST_F(GangRequeue, ATimeLimitThatIsExtendedBeforeTheRequeueLeadsToNone) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  rig.Feed(EndMoved{});
  EXPECT_EQ(rig.Did<Note>()->kind, "end_moved");
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), -1);
  rig.Feed(CheckpointCommitted{100});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting) << "and a fault is healed as any other";
  rig.ExecuteAll();
  // It may come near again.
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  rig.Feed(CheckpointCommitted{101});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangRequeue, AJobThatIsNotRequeuedIsToldOfItsEndOnceInEachGeneration) {
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Feed(EndNear{.left_ms = 90'000});
  EXPECT_TRUE(rig.Did<TellMembers>());
  rig.Feed(EndNear{.left_ms = 85'000});
  EXPECT_TRUE(rig.actions.empty());
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  rig.ExecuteAll();
  rig.Feed(EndNear{.left_ms = 80'000});
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->exit);
}

TEST_F(GangRequeue, WhatIsNoMoreToBeTakenBackStays) {
  rig.Feed(EndMoved{});
  EXPECT_TRUE(rig.actions.empty()) << "nothing was announced";
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 90'000});
  rig.Feed(EndMoved{});
  EXPECT_TRUE(rig.actions.empty()) << "a preemption is none of the limit's";
  rig.Feed(CheckpointCommitted{100});
  rig.Feed(EndMoved{});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangRequeue, ADrainKeepsItsTimeWhenTheLimitIsExtended) {
  rig.Feed(DrainNode{0, "disk"});
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  rig.Feed(EndMoved{});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), std::nullopt);
}

TEST_F(GangRequeue, NearTheEndOfAJobThatIsNotRequeuedItsMembersAreAskedToCheckpointAndToExit) {
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Feed(EndNear{.left_ms = 90'000});
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->exit);
  rig.Feed(CheckpointCommitted{100});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangRequeue, AFaultNearTheEndIsHealedAndTheNewGenerationIsAskedForACheckpoint) {
  rig.Exit(0, ExitCode(1));
  rig.Feed(EndNear{.left_ms = 90'000});
  EXPECT_FALSE(rig.Did<TellMembers>()) << "nobody is there to hear it";
  rig.StopAll();
  rig.ExecuteAll();
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->save);
  rig.Feed(CheckpointCommitted{100});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangRequeue, TheGenerationAfterAFaultNearTheEndHasNoMoreTimeThanIsLeft) {
  rig.Feed(EndNear{.left_ms = 90'000});
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  rig.ExecuteAll();
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), rig.gang.settings().grace_ms);
  rig.Feed(EndNear{.left_ms = 10'000});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 10'000);
}

TEST_F(GangRequeue, AnEndThatComesNearWhileAGenerationStartsLeavesThatGenerationNoMoreTime) {
  rig.Feed(EndNear{.left_ms = 90'000});
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  rig.Feed(EndNear{.left_ms = 10'000});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 10'000);
  rig.ExecuteAll();
  EXPECT_TRUE(rig.Did<TellMembers>());
  EXPECT_FALSE(rig.TimerSet(Timer::kGrace)) << "it runs already";
}

TEST_F(GangRequeue, UnkillableProcessesDoNotHinderARequeueThatWasPlanned) {
  rig.Feed(EndNear{.left_ms = 90'000});
  rig.Feed(CheckpointCommitted{100});
  rig.Stopped(0, 1);
  rig.Stopped(1, 1);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

// ---- Slurm has signalled the members: the warning that the job wants (--signal), or a preemption's SIGTERM

class GangWarned : public GangRequeue {
 protected:
  // The program saves, and exits with 0 or any other code.
  void Warn() { rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000, .signalled = true}); }
  void ExpectRequeued() {
    rig.StopAll();
    ASSERT_TRUE(rig.Did<RequeueJob>());
    EXPECT_EQ(rig.gang.state(), State::kRequeueing);
    EXPECT_EQ(rig.gang.user_faults(), 0U);
  }
};

TEST_F(GangWarned, WhenAllHaveSavedAndEndedTheJobIsRequeued) {
  Warn();
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 90'000);
  rig.Exit(0, ExitCode(0));
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(1, ExitCode(0));
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ExpectRequeued();
}

TEST_F(GangWarned, AnotherCodeStopsNobodyWhoStillSaves) {
  Warn();
  rig.Exit(0, ExitCode(143));
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_FALSE(rig.Did<StopGeneration>());
  rig.LoseSupervisor(0);
  EXPECT_FALSE(rig.Did<StopGeneration>());
  rig.Exit(1, SIGUSR1);
  ExpectRequeued();
}

TEST_F(GangWarned, WhoDoesNotEndIsStoppedInTime) {
  Warn();
  rig.Exit(0, ExitCode(0));
  rig.Feed(TimerFired{Timer::kGrace});
  EXPECT_TRUE(rig.Did<StopGeneration>());
  ExpectRequeued();
}

TEST_F(GangWarned, AnEndThatWasNearBeforeGetsTheTimeThatTheSignalLeaves) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 60'000});
  Warn();
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 90'000);
  rig.Exit(0, ExitCode(0));
  rig.Exit(1, ExitCode(0));
  ExpectRequeued();
}

TEST_F(GangWarned, BySigtermTooHoweverLongSlurmTakesToSayWhy) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM, .undecided = true});
  rig.Exit(0, ExitCode(0));
  rig.Exit(1, ExitCode(1));
  EXPECT_EQ(rig.gang.state(), State::kRunning) << "nothing is decided";
  Warn();
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ExpectRequeued();
}

TEST_F(GangWarned, BySigtermWhileAFaultStopsTheGeneration) {
  rig.Exit(0, ExitCode(1));
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM, .undecided = true});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  for (uint32_t task = 0; task < 3; ++task) rig.LoseSupervisor(task);
  Warn();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangWarned, ByAPreemptionWhoseSigtermTheProgramObeys) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM, .undecided = true});
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 10'000});
  rig.Exit(0, ExitCode(0));
  rig.Exit(1, ExitCode(0));
  ExpectRequeued();
}

TEST_F(GangWarned, AndPreemptedThenHasTheTimeThatThePreemptionLeaves) {
  Warn();
  rig.Feed(Terminating{.task = 0, .undecided = true});
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 10'000});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 10'000);
}

TEST_F(GangWarned, WhoseFirstMembersHaveEndedIsNotCalledHung) {
  Warn();
  rig.Exit(0, ExitCode(143));
  rig.Feed(Hung{.task = 1, .generation = 1, .what = "rank 1 stands still"});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangWarned, TheRecordSaysSoForTheCoordinatorAfterThisOne) {
  EXPECT_FALSE(rig.gang.Remember().warned);
  Warn();
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_EQ(rig.gang.Remember().warned, CauseClass::kTimeLimit);
  Warn();
  EXPECT_FALSE(rig.Did<Persist>()) << "once";
}

TEST_F(GangWarned, BySigtermTheRecordNoLongerSaysThatSlurmEndsTheJob) {
  rig.Feed(Terminating{.undecided = true});
  EXPECT_TRUE(rig.gang.Remember().terminating);
  Warn();
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_FALSE(rig.gang.Remember().terminating);
  EXPECT_EQ(rig.gang.Remember().warned, CauseClass::kTimeLimit);
}

TEST_F(GangWarned, AnotherNodesSigtermDoesNotUndoTheRecord) {
  rig.Feed(Terminating{.task = 0, .undecided = true});
  Warn();
  rig.Feed(Terminating{.task = 1, .undecided = true});
  EXPECT_FALSE(rig.gang.Remember().terminating) << "while Slurm is asked why";
  EXPECT_EQ(rig.gang.Remember().warned, CauseClass::kTimeLimit);
  EXPECT_FALSE(rig.Did<Persist>()) << "the record says so already";
  Warn();
  EXPECT_FALSE(rig.Did<Persist>());
  rig.Feed(Terminating{.task = 0, .undecided = true});
  rig.Feed(Terminating{.task = 0});
  EXPECT_TRUE(rig.Did<Persist>());
  EXPECT_TRUE(rig.gang.Remember().terminating) << "this one was a scancel's";
}

TEST_F(GangWarned, WhoDoesNotEndIsStoppedThoughSlurmIsBeingAskedWhenTheTimeIsOver) {
  Warn();
  rig.Feed(Terminating{.task = 0, .undecided = true});
  rig.Feed(TimerFired{Timer::kGrace});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_TRUE(rig.TimerSet(Timer::kGrace));
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 1});
  rig.Feed(TimerFired{Timer::kGrace});
  EXPECT_TRUE(rig.Did<StopGeneration>());
  ExpectRequeued();
}

TEST(GangWarnedEarly, TheFirstGenerationHasNoMoreTimeThanTheSignalLeaves) {
  Rig rig(2, 1);
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 40'000, .signalled = true});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 40'000);
  rig.Run();
  EXPECT_FALSE(rig.TimerSet(Timer::kGrace));
  rig.Feed(TimerFired{Timer::kGrace});
  rig.StopAll();
  EXPECT_TRUE(rig.Did<RequeueJob>());
}

TEST(GangWarnedEarly, TheRecordOfAGangThatSlurmHasEndedSaysSo) {
  Rig rig(2, 1);
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 40'000, .signalled = true});
  rig.Feed(Terminating{.undecided = true});
  ASSERT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.Remember().terminating);
}

// As a coordinator that takes over.
class GangWarnedBefore : public ::testing::Test {
 protected:
  void Join(uint32_t node, std::optional<int> code) {
    NodeJoined joined = rig.Node(node, code ? MemberState::kExited : MemberState::kRunning, 5);
    if (code) joined.members[0].exit = gang::Exit{.status = *code};
    rig.Feed(joined);
  }
  Rig rig{Rig::SettingsOf(2, 1),
          {.generation = 5, .running = true, .active = {0, 1}, .warned = CauseClass::kTimeLimit}};
};

TEST_F(GangWarnedBefore, TheJobIsRequeuedWhenAllHaveEnded) {
  for (const uint32_t node : {0, 1}) Join(node, ExitCode(0));
  rig.StopAll();
  EXPECT_TRUE(rig.Did<RequeueJob>());
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangWarnedBefore, WhoStillSavesIsNotStoppedByAnotherCode) {
  Join(0, ExitCode(143));
  Join(1, std::nullopt);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_FALSE(rig.Did<StopGeneration>());
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 70'000, .signalled = true});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 70'000);
  rig.Exit(1, ExitCode(0));
  rig.StopAll();
  EXPECT_TRUE(rig.Did<RequeueJob>());
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangWarnedBefore, WhoStillSavesIsStoppedThoughNobodySaysHowMuchTimeIsLeft) {
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), rig.gang.settings().grace_ms);
  for (const uint32_t node : {0, 1}) Join(node, std::nullopt);
  EXPECT_FALSE(rig.TimerSet(Timer::kGrace)) << "it runs";
  rig.Feed(TimerFired{Timer::kGrace});
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  EXPECT_TRUE(rig.Did<RequeueJob>());
}

TEST_F(GangWarnedBefore, WhoStillSavesHasTheTimeThatIsLeftThoughNobodySaysTheSignalAgain) {
  for (const uint32_t node : {0, 1}) Join(node, std::nullopt);
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 50'000});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 50'000);
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 49'000});
  EXPECT_FALSE(rig.TimerSet(Timer::kGrace)) << "once";
}

TEST_F(GangWarnedBefore, TheTimeThatIsLeftCountsFromTheFirstWordOfItThoughNodesAreMissing) {
  Join(0, std::nullopt);
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 70'000, .signalled = true});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 70'000);
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 0, .signalled = true});
  EXPECT_EQ(rig.TimerSet(Timer::kGrace), 0);
  rig.Feed(TimerFired{Timer::kGrace});
  EXPECT_EQ(rig.gang.state(), State::kRecovering);
  EXPECT_GT(rig.TimerSet(Timer::kGrace), 0) << "again, when the others may be here";
  Join(1, std::nullopt);
  EXPECT_FALSE(rig.TimerSet(Timer::kGrace));
  rig.Feed(TimerFired{Timer::kGrace});
  EXPECT_TRUE(rig.Did<StopGeneration>());
}

TEST_F(GangWarnedBefore, WhichIsFoundHalfStoppedIsRequeuedThoughItHasRestartedOften) {
  Memory memory = rig.gang.Remember();
  memory.running = true;
  memory.restarts_without_progress = kMaxRestartsWithoutProgress;
  Rig next(Rig::SettingsOf(2, 1), memory);
  next.Join(0, MemberState::kStopped, 5);
  next.Join(1, MemberState::kRunning, 5);
  next.StopAll();
  ASSERT_TRUE(next.Did<RequeueJob>());
  EXPECT_THAT(next.NoteOf("fault"), HasSubstr("is stopped (generation 5); the job is requeued"));
}

// The coordinator before has not learnt, or not written, why Slurm has sent SIGTERM.
class GangTerminatingBefore : public ::testing::Test {
 protected:
  GangTerminatingBefore() {
    rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
    for (const uint32_t node : {0, 1}) rig.Join(node, MemberState::kRunning, 5);
    rig.Feed(Terminating{.undecided = true});
    rig.Exit(0, ExitCode(0));
    rig.Exit(1, ExitCode(1));
    EXPECT_EQ(rig.gang.state(), State::kRunning) << "Slurm is being asked why";
  }
  Rig rig{Rig::SettingsOf(2, 1), {.generation = 5, .running = true, .active = {0, 1}, .terminating = true}};
};

TEST_F(GangTerminatingBefore, ByTheWarningTheJobIsRequeued) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 70'000, .signalled = true});
  rig.StopAll();
  EXPECT_TRUE(rig.Did<RequeueJob>());
}

TEST_F(GangTerminatingBefore, ByACancelTheGangEnds) {
  rig.Feed(Terminating{});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_NE(rig.NoteOf("terminated"), "");
}

// A scancel's SIGTERM has ended the members. The nodes register with a new coordinator before they tell it of that SIGTERM.
class GangCancelledMeanwhile : public GangWarnedBefore {
 protected:
  GangCancelledMeanwhile() {
    for (const uint32_t node : {0, 1}) Join(node, ExitCode(143));
    EXPECT_EQ(rig.gang.state(), State::kStopping);
    rig.Feed(Terminating{.undecided = true});
    rig.StopAll();
    EXPECT_EQ(rig.gang.state(), State::kStopping) << "Slurm is being asked why";
  }
};

TEST_F(GangCancelledMeanwhile, TheJobIsNotRequeued) {
  rig.Feed(Terminating{});
  EXPECT_THAT(rig.NoteOf("terminated"), HasSubstr("before its requeue"));
  EXPECT_FALSE(rig.Did<RequeueJob>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangCancelledMeanwhile, ByTheWarningAgainTheJobIsRequeued) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 70'000, .signalled = true});
  EXPECT_TRUE(rig.Did<RequeueJob>());
}

TEST_F(GangCancelledMeanwhile, ByAPreemptionTheJobIsRequeued) {
  rig.Feed(Terminating{.may_run_again = true});
  EXPECT_TRUE(rig.Did<RequeueJob>());
}

TEST_F(GangRequeue, AJobThatIsCancelledBeforeItsRequeueIsOrderedEnds) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  rig.Feed(CheckpointCommitted{100});
  rig.Feed(Terminating{.task = 0});
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangWarned, WithoutARequeueAnExitIsTheEnd) {
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = false});
  Warn();
  rig.Exit(0, ExitCode(0));
  rig.Exit(1, ExitCode(0));
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRequeue, WithoutASignalAProgramThatEndsNearTheLimitHasSucceeded) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  rig.Exit(0, ExitCode(0));
  rig.Exit(1, ExitCode(0));
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST(GangWarnedChief, IsWaitedForAsTheOthersAre) {
  Settings settings = Rig::SettingsOf(2, 1);
  settings.roles = {Role{.name = "chief", .kind = RoleKind::kChief},
                    Role{.name = "log", .kind = RoleKind::kSidecar}};
  settings.node_roles = {0, 1};
  Rig rig(settings);
  rig.Run();
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000, .signalled = true});
  rig.Exit(0, ExitCode(0));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing) << "a sidecar does not end by itself";
}

}  // namespace
}  // namespace muster::gang
