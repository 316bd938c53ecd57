// How a gang ends, and with which exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GangFinish : public ::testing::Test {
 protected:
  GangFinish() { rig.Run(); }
  Rig rig{2, 1, 0};
};

TEST_F(GangFinish, ExitZeroOfAllMembersIsASuccess) {
  rig.Exit(0, 0);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(1, 0);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.succeeded());
  const auto finish = rig.Did<FinishGang>();
  ASSERT_TRUE(finish);
  EXPECT_TRUE(finish->succeeded);
  EXPECT_FALSE(finish->cause);
  EXPECT_FALSE(finish->code);
  EXPECT_THAT(finish->nodes, ElementsAre(0, 1));
  EXPECT_TRUE(rig.Did<Persist>());
}

TEST_F(GangFinish, InANewTermWhatHoldsIsSaidAgainToWhoIsThere) {
  rig.actions = rig.gang.SayAgain();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(0, 1));
  EXPECT_FALSE(rig.Did<FinishGang>());
  rig.Exit(0, 0);
  rig.Exit(1, 0);
  rig.Feed(NodeLeft{0});
  rig.actions = rig.gang.SayAgain();
  ASSERT_TRUE(rig.Did<FinishGang>());
  EXPECT_THAT(rig.Did<FinishGang>()->nodes, ElementsAre(1));
  EXPECT_FALSE(rig.Did<StartGeneration>());
}

TEST_F(GangFinish, TheSameExitSaidTwiceCountsOnce) {
  rig.Exit(0, 0);
  rig.Exit(0, 0);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangFinish, TheFirstCausesTaskKeepsItsStatusAndTheOthersExitZero) {
  rig.Exit(1, ExitCode(7));
  rig.StopAll();
  const auto finish = rig.Did<FinishGang>();
  ASSERT_TRUE(finish);
  EXPECT_FALSE(finish->succeeded);
  EXPECT_EQ(finish->cause, 1U);
  EXPECT_FALSE(finish->code);
}

TEST_F(GangFinish, AMemberThatGivesWayToCtrlCIsNotStartedAgain) {
  for (const int status : {SIGINT, ExitCode(130)}) {
    Rig fresh{2, 1, 3};
    fresh.Run();
    fresh.Exit(1, status);
    fresh.StopAll();
    EXPECT_EQ(fresh.gang.state(), State::kFinished);
    const auto finish = fresh.Did<FinishGang>();
    ASSERT_TRUE(finish);
    EXPECT_EQ(finish->cause, 1U);
    EXPECT_FALSE(finish->code);
  }
}

TEST_F(GangFinish, TheReportGoesBeforeTheFinish) {
  rig.Exit(1, ExitCode(7));
  rig.StopAll();
  bool reported = false;
  for (const Action& action : rig.actions) {
    reported |= std::holds_alternative<ReportToJob>(action);
    if (std::holds_alternative<FinishGang>(action)) {
      EXPECT_TRUE(reported);
    }
  }
}

TEST_F(GangFinish, AnEndWithoutAMembersStatusIsCodeOne) {
  rig.LoseSupervisor(0);
  rig.StopAll();
  const auto finish = rig.Did<FinishGang>();
  ASSERT_TRUE(finish);
  EXPECT_FALSE(finish->cause);
  EXPECT_EQ(finish->code, 1);
}

TEST_F(GangFinish, ALostSupervisorEndsTheGangWithoutARestart) {
  Rig allowed(2, 1, 3);
  allowed.Run();
  allowed.LoseSupervisor(0);
  ASSERT_TRUE(allowed.Did<StopGeneration>());
  allowed.StopAll();
  EXPECT_EQ(allowed.gang.state(), State::kFinished);
  EXPECT_EQ(allowed.gang.user_faults(), 0U);
}

TEST_F(GangFinish, TheReportOfALostSupervisorGoesThroughOneThatIsThere) {
  rig.LoseSupervisor(0);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<ReportToJob>());
  EXPECT_EQ(rig.Did<ReportToJob>()->task, 1U);
}

TEST_F(GangFinish, ASupervisorLostWhileStoppingEndsTheGangAndKeepsTheFirstCause) {
  Rig allowed(2, 1, 3);
  allowed.Run();
  allowed.Exit(0, ExitCode(7));
  allowed.LoseSupervisor(1);
  allowed.StopAll();
  EXPECT_EQ(allowed.gang.state(), State::kFinished);
  EXPECT_EQ(allowed.Did<FinishGang>()->cause, 0U);
}

TEST_F(GangFinish, ASupervisorLostAfterItsProgramEndedWellEndsTheGang) {
  rig.Exit(0, 0);
  rig.LoseSupervisor(0);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.LoseSupervisor(0);  // said again
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.gang.succeeded());
}

TEST_F(GangFinish, ProcessesThatSurviveSigkillEndTheGangWhereTheirNodeCannotBeReplaced) {
  Rig allowed(2, 1, 3);
  allowed.Run();
  allowed.Feed(JobFacts{.can_requeue = false});
  allowed.Exit(0, ExitCode(7));
  allowed.Stopped(0, 2);
  EXPECT_FALSE(allowed.Did<FinishGang>()) << "the other node still stops";
  allowed.Stopped(1);
  EXPECT_FALSE(allowed.Did<StartGeneration>());
  ASSERT_TRUE(allowed.Did<FinishGang>());
  EXPECT_EQ(allowed.Did<FinishGang>()->cause, 0U) << "the first cause is still the member's";
  EXPECT_THAT(allowed.Did<ReportToJob>()->text, HasSubstr("2 processes of generation 1 survive SIGKILL"));
}

TEST_F(GangFinish, NothingIsStartedOrStoppedAfterTheEnd) {
  rig.Exit(0, 0);
  rig.Exit(1, 0);
  for (const Event& event :
       {Event(MemberExited{0, 1, {.status = ExitCode(1)}}), Event(NodeStopped{0, 1, 0, 0}),
        Event(Terminating{0, SIGTERM}), Event(CheckpointBad{0, 1, 5, ""}), Event(NodeLeft{0}),
        Event(MemberExecuted{0, 1, 0}), Event(Progressed{9}), Event(TimerFired{Timer::kJoin}),
        Event(NodeSilent{0}), Event(TimerFired{Timer::kProgress})}) {
    rig.Feed(event);
    EXPECT_TRUE(rig.actions.empty()) << event.index();
  }
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangFinish, ANodeThatWasAwayAtTheEndIsToldWhenItComesBack) {
  rig.Exit(0, 0);
  rig.Feed(NodeLeft{0});
  rig.Exit(1, 0);
  EXPECT_THAT(rig.Did<FinishGang>()->nodes, ElementsAre(1));
  rig.Join(0, MemberState::kExited, 1);
  ASSERT_TRUE(rig.Did<FinishGang>());
  EXPECT_TRUE(rig.Did<FinishGang>()->succeeded);
  EXPECT_THAT(rig.Did<FinishGang>()->nodes, ElementsAre(0));
}

class GangTerminating : public ::testing::Test {
 protected:
  GangTerminating() { rig.Run(); }
  Rig rig{2, 1};
};

TEST_F(GangTerminating, SigtermAsksMembersToCheckpointAndToExit) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->save);
  EXPECT_TRUE(rig.Did<TellMembers>()->exit);
  EXPECT_THAT(rig.NoteOf("terminating"), HasSubstr("SIGTERM"));
}

TEST_F(GangTerminating, SigtermIsToldOnceThoughEveryTaskGetsIt) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  rig.Feed(Terminating{.task = 1, .signal = SIGTERM});
  EXPECT_TRUE(rig.actions.empty());
}

TEST_F(GangTerminating, ASignalWithoutANameIsTakenToo) {
  rig.Feed(Terminating{.task = 0, .signal = 4'000'000'000});
  EXPECT_TRUE(rig.Did<TellMembers>());
}

TEST_F(GangTerminating, AfterSigtermAMembersDeathStartsNoNewGeneration) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  rig.Exit(0, SIGTERM);
  EXPECT_FALSE(rig.Did<StopGeneration>()) << "the others may still write their checkpoint";
  rig.Exit(1, ExitCode(1));
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.gang.succeeded());
  EXPECT_FALSE(rig.Did<FinishGang>()->cause) << "each task ends as its program did";
  EXPECT_FALSE(rig.Did<FinishGang>()->code);
}

TEST_F(GangTerminating, MembersThatAllExitZeroAfterSigtermAreASuccess) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  rig.Exit(0, 0);
  rig.Exit(1, 0);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangTerminating, SigtermWhileStoppingMakesThatTheEnd) {
  rig.Exit(0, ExitCode(7));
  rig.Feed(Terminating{.task = 1, .signal = SIGTERM});
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangTerminating, SigtermWhileStartingMakesThatTheLastGeneration) {
  Rig starting(2, 1);
  starting.JoinAll();
  starting.Feed(Terminating{.task = 0, .signal = SIGTERM});
  starting.Exit(0, SIGTERM);
  starting.Exit(1, SIGTERM);
  EXPECT_EQ(starting.gang.state(), State::kFinished);
}

TEST_F(GangTerminating, ABadCheckpointAfterSigtermStartsNoNewGeneration) {
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  rig.Feed(CheckpointBad{.task = 0, .generation = 1, .step = 5});
  rig.StopAll();
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

}  // namespace
}  // namespace muster::gang
