// A member fails: the generation is stopped on all nodes, and the next one follows if the budget allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class GangRestart : public ::testing::Test {
 protected:
  GangRestart() { rig.Run(); }
  Rig rig{2, 2};
};

TEST_F(GangRestart, ANonZeroExitStopsTheGenerationOnAllNodes) {
  rig.Exit(3, ExitCode(1));
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.Did<StopGeneration>()->generation, 1U);
  EXPECT_THAT(rig.Did<StopGeneration>()->nodes, ElementsAre(0, 1));
  EXPECT_FALSE(rig.Did<StartGeneration>());
}

TEST_F(GangRestart, ADeathBySignalStopsTheGenerationOnAllNodes) {
  rig.Exit(3, SIGSEGV);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  EXPECT_TRUE(rig.Did<StopGeneration>());
}

TEST_F(GangRestart, AnExitWhileOthersAreStillStartingStopsTheGeneration) {
  Rig starting(2, 2);
  starting.JoinAll();
  starting.Exit(0, ExitCode(2));
  EXPECT_EQ(starting.gang.state(), State::kStopping);
  EXPECT_TRUE(starting.Did<StopGeneration>());
}

class GangLastWords : public ::testing::Test {
 protected:
  GangLastWords() { rig.Run(); }
  static Settings FiveSeconds() {
    Settings settings = Rig::SettingsOf(2, 2);
    settings.last_words_ms = 5'000;
    settings.roles[0].kind = RoleKind::kTracked;
    return settings;
  }
  [[nodiscard]] bool Given() const { return rig.Did<StopGeneration>().value_or(StopGeneration()).last_words; }
  Rig rig{FiveSeconds()};
};

TEST_F(GangLastWords, AreGivenWhenAFaultEndsAGenerationAndTheirTimeIsNoted) {
  rig.Exit(3, ExitCode(1));
  EXPECT_TRUE(Given());
  rig.Feed(NodeStopped{.node = 0, .generation = 1, .last_words_ms = 420});
  rig.Feed(NodeStopped{.node = 1, .generation = 1});
  EXPECT_EQ(rig.NoteOf("last_words"), "the members' last words took 0.4 s");
  rig.ExecuteAll();
  rig.Exit(3, SIGSEGV);
  rig.Feed(NodeStopped{.node = 1, .generation = 2, .last_words_ms = 5'012});
  rig.Feed(NodeStopped{.node = 0, .generation = 2, .last_words_ms = 30});
  EXPECT_EQ(rig.NoteOf("last_words"),
            "the members' last words took 5.0 s; killed when the time was over: members on n1");
  EXPECT_TRUE(rig.Did<StartGeneration>());
  rig.ExecuteAll();
  rig.Exit(0, ExitCode(9));
  rig.StopAll();
  EXPECT_EQ(rig.NoteOf("last_words"), "") << "none were said";
}

TEST_F(GangLastWords, AreGivenAgainToANodeThatIsBackWhileItIsStopped) {
  rig.Exit(3, ExitCode(1));
  rig.Feed(NodeLeft{0});
  rig.Join(0, MemberState::kRunning, 1);
  EXPECT_TRUE(Given()) << "else they would end there";
}

TEST_F(GangLastWords, AreNotGivenAtAPlannedStop) {
  Settings settings = FiveSeconds();
  settings.roles[0].spares = 1;
  Rig planned(settings);
  planned.Run();
  planned.Feed(DrainNode{0, "maintenance"});
  planned.Feed(CheckpointCommitted{7});
  ASSERT_TRUE(planned.Did<StopGeneration>());
  EXPECT_FALSE(planned.Did<StopGeneration>()->last_words);
}

TEST_F(GangLastWords, AreNotGivenToWhomSlurmEnds) {
  rig.Exit(3, ExitCode(1));
  rig.Feed(Terminating{.task = 0, .signal = SIGTERM});
  ASSERT_TRUE(rig.Did<StopGeneration>()) << "those that are under way end";
  EXPECT_FALSE(Given());
  rig.Feed(NodeLeft{0});
  rig.Join(0, MemberState::kRunning, 1);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_FALSE(Given());
}

TEST_F(GangLastWords, EndWhenTheJobsEndIsNear) {
  rig.Feed(JobFacts{.batch_node = std::nullopt, .can_requeue = true});
  rig.Exit(3, ExitCode(1));
  ASSERT_TRUE(Given());
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 5'000});
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_FALSE(Given());
}

TEST_F(GangLastWords, AreNotGivenBeforeAJobsEndThatIsNear) {
  rig.Feed(JobFacts{.batch_node = std::nullopt, .can_requeue = true});
  rig.Feed(EndNear{.cause = CauseClass::kPreemption, .left_ms = 5'000});
  rig.Exit(3, ExitCode(1));
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_FALSE(Given());
}

TEST_F(GangLastWords, AreNotGivenWhenTheGangHasSucceeded) {
  Settings settings = FiveSeconds();
  settings.roles[0].kind = RoleKind::kChief;
  settings.roles.push_back({.name = "ps", .kind = RoleKind::kService});
  settings.node_roles = {0, 1};
  Rig chief(settings);
  chief.Run();
  chief.Exit(0, 0);
  ASSERT_TRUE(chief.Did<StopGeneration>());
  EXPECT_FALSE(chief.Did<StopGeneration>()->last_words);
}

TEST_F(GangRestart, WithoutTheKeyNobodyHasLastWords) {
  rig.Exit(3, ExitCode(1));
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_FALSE(rig.Did<StopGeneration>()->last_words);
}

TEST_F(GangRestart, TheNextGenerationStartsOnlyWhenEveryNodeHasSaidStopped) {
  rig.Exit(0, ExitCode(1));
  rig.Stopped(1);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Stopped(1);  // said twice
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Stopped(0);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.Did<StartGeneration>()->generation, 2U);
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(0, 1));
  EXPECT_TRUE(rig.Did<Persist>());
}

TEST_F(GangRestart, AStoppedOfAnOlderGenerationDoesNotCount) {
  rig.Restart();
  rig.Exit(0, ExitCode(1));
  rig.Feed(NodeStopped{0, 1, 0, 0});
  rig.Feed(NodeStopped{1, 1, 0, 0});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
}

TEST_F(GangRestart, AStoppedThatACoordinatorBeforeAskedForEndsTheGenerationAndIsFree) {
  rig.Stopped(0);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  rig.Stopped(1);
  EXPECT_EQ(rig.gang.generation(), 2U);
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangRestart, AnExitOfAnOlderGenerationIsIgnored) {
  rig.Restart();
  rig.Feed(MemberExited{2, 1, {.status = ExitCode(1)}});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_EQ(rig.gang.generation(), 2U);
}

TEST_F(GangRestart, TheReportNamesRankHostProgramPidStatusAndTheLastLinesOfStderr) {
  rig.Feed(MemberExited{3,
                        1,
                        {.status = ExitCode(7),
                         .pid = 4711,
                         .program = "python3",
                         .stderr_tail = "Traceback\n\nValueError: no such rank"}});
  rig.StopAll();
  const auto report = rig.Did<ReportToJob>();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->task, 3U);
  EXPECT_THAT(report->text, HasSubstr("gang 12.0: generation 1 ended: rank 3 on n1 (python3, pid 4711) "
                                      "exited with code 7\n"));
  EXPECT_THAT(report->text, HasSubstr("muster:   | Traceback\nmuster:   | ValueError: no such rank\n"));
  EXPECT_THAT(report->text, HasSubstr("restart 1 of 3"));
}

TEST_F(GangRestart, TheReportHoldsTenLinesOfAtMostFiveHundredBytes) {
  std::string tail;
  for (int i = 0; i < 30; ++i) tail += "line " + std::to_string(i) + std::string(1000, 'x') + "\n";
  rig.Feed(MemberExited{3, 1, {.status = ExitCode(7), .stderr_tail = tail}});
  rig.StopAll();
  const std::string text = rig.Did<ReportToJob>()->text;
  EXPECT_THAT(text, Not(HasSubstr("line 19")));
  EXPECT_THAT(text, HasSubstr("line 20"));
  EXPECT_THAT(text, HasSubstr("line 29"));
  EXPECT_LT(text.size(), 6000U);
}

TEST_F(GangRestart, TheEarliestExitIsTheFirstCause) {
  rig.Exit(0, SIGABRT, 2'000);
  rig.Exit(3, ExitCode(7), 1'000);  // on another node, heard of later
  rig.Exit(1, SIGABRT, 1'500);
  rig.StopAll();
  ASSERT_TRUE(rig.gang.last_fault());
  EXPECT_EQ(rig.gang.last_fault()->task, 3U);
  EXPECT_EQ(rig.gang.user_faults(), 1U) << "one fault, however many members it took along";
}

// What others do about a death may be heard of before the death.
TEST_F(GangRestart, OnlyTheEarliestExitIsCharged) {
  rig.Exit(0, ExitCode(1), 2'000);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  rig.Feed(MemberExited{3, 1, {.status = SIGKILL, .time_ns = 1'000, .cause = CauseClass::kInfrastructure}});
  EXPECT_EQ(rig.gang.user_faults(), 0U);
  rig.Exit(2, ExitCode(1), 500);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  EXPECT_THAT(rig.gang.Remember().user_fault_times, ::testing::IsEmpty());
  rig.StopAll();
  EXPECT_EQ(rig.gang.last_fault()->task, 2U);
  EXPECT_THAT(rig.gang.Remember().user_fault_times, ElementsAre(500));
}

// The schedule 20261127011879 of the simulation.
TEST_F(GangRestart, AnEarlierExitOfWhoCouldNotReadTheCheckpointIsNotCharged) {
  rig.Feed(MemberExited{0, 1, {.status = SIGKILL, .time_ns = 2'000, .cause = CauseClass::kInfrastructure}});
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40, .reason = "no"});
  rig.Exit(2, ExitCode(1), 1'000);
  EXPECT_EQ(rig.gang.user_faults(), 0U);
  rig.StopAll();
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangRestart, AChargeThatIsTakenBackTakesNoForgivenessWithIt) {
  rig.Exit(0, ExitCode(1), 1);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Feed(Progressed{1});
  rig.Exit(0, ExitCode(1), 2'000);
  rig.Feed(MemberExited{3, 2, {.status = SIGKILL, .time_ns = 1'000, .cause = CauseClass::kInfrastructure}});
  rig.StopAll();
  rig.ExecuteAll();
  rig.Exit(0, ExitCode(1), 100 * 3'600'000'000'000);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
}

TEST_F(GangRestart, WhomAMemberWaitedForIsTold) {
  rig.Feed(MemberExited{
      0,
      1,
      {.status = ExitCode(1), .cause = CauseClass::kInfrastructure, .waited_for = "rank 3 on n1 did not"}});
  rig.StopAll();
  EXPECT_THAT(rig.Did<ReportToJob>()->text,
              HasSubstr("exited with code 1; it waited for others: rank 3 on n1 did not"));
}

TEST_F(GangRestart, AnExitWithCodeZeroIsNoCause) {
  rig.Exit(0, SIGABRT, 2'000);
  rig.Exit(3, 0, 1'000);
  rig.StopAll();
  EXPECT_EQ(rig.gang.last_fault()->task, 0U);
}

TEST_F(GangRestart, TheNewGenerationSaysHowLongAfterTheFaultItRuns) {
  rig.Exit(0, ExitCode(1), 1'000'000'000);
  rig.StopAll();
  rig.ExecuteAll(1'030'000'000);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  ASSERT_TRUE(rig.Did<ReportToJob>());
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("generation 2 runs, 30.0 ms after the fault"));
}

TEST_F(GangRestart, UserFaultsAreCountedAgainstRestarts) {
  for (uint32_t i = 1; i <= 3; ++i) {
    rig.Restart();
    EXPECT_EQ(rig.gang.state(), State::kRunning);
    EXPECT_EQ(rig.gang.user_faults(), i);
    EXPECT_EQ(rig.gang.restarts().at("user"), i);
  }
  rig.Exit(2, ExitCode(5));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("limit of 3 restarts"));
}

TEST_F(GangRestart, TheLimitHoldsHoweverMuchProgressThereWas) {
  for (uint64_t i = 1; i <= 3; ++i) {
    rig.Feed(Progressed{i});
    rig.Restart();
  }
  rig.Feed(Progressed{4});
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

constexpr int64_t kHour = 3'600'000'000'000;

TEST_F(GangRestart, AFaultIsForgivenAfterADayIfThereWasProgress) {
  const auto fail = [this](int64_t time_ns) {
    rig.Exit(0, ExitCode(1), time_ns);
    rig.StopAll();
    rig.ExecuteAll();
  };
  for (int64_t day = 0; day < 10; ++day) {
    fail(day * 24 * kHour + 1);
    fail(day * 24 * kHour + 12 * kHour + 1);
    rig.Feed(Progressed{static_cast<uint64_t>(day) + 1});
    EXPECT_EQ(rig.gang.state(), State::kRunning);
    EXPECT_LE(rig.gang.user_faults(), 3U);
  }
  // Progress before a fault that is nobody's counts.
  rig.Feed(
      MemberExited{0,
                   rig.gang.generation(),
                   {.status = SIGKILL, .time_ns = 290 * 24 * kHour, .cause = CauseClass::kInfrastructure}});
  rig.StopAll();
  rig.ExecuteAll();
  fail(300 * 24 * kHour);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  fail(600 * 24 * kHour);
  EXPECT_EQ(rig.gang.user_faults(), 2U) << "there was no progress in between";
}

TEST_F(GangRestart, ACauseThatIsFoundOutLaterForgivesToo) {
  for (int64_t i = 1; i <= 3; ++i) {
    rig.Exit(0, ExitCode(1), i);
    rig.StopAll();
    rig.ExecuteAll();
  }
  rig.Feed(Progressed{1});
  rig.Feed(
      MemberExited{3,
                   rig.gang.generation(),
                   {.status = SIGKILL, .time_ns = 100 * kHour + 1, .cause = CauseClass::kInfrastructure}});
  rig.Exit(0, ExitCode(1), 100 * kHour);
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  rig.StopAll();
  EXPECT_TRUE(rig.Did<StartGeneration>());
}

TEST_F(GangRestart, AFaultWhoseTimeIsNotKnownIsAsOldAsTheOneBeforeItOrNeverForgiven) {
  rig.Restart();
  rig.Feed(Progressed{1});
  rig.Exit(0, ExitCode(1), 100 * kHour);
  rig.StopAll();
  rig.ExecuteAll();
  rig.Feed(Progressed{2});
  rig.Restart();
  EXPECT_THAT(rig.gang.Remember().user_fault_times, ElementsAre(0, 100 * kHour, 100 * kHour));
}

TEST_F(GangRestart, WithoutForgivenessAFaultCountsForEver) {
  Settings settings = Rig::SettingsOf(2, 2);
  settings.forgive_after_ms = 0;
  Rig never(settings);
  never.Run();
  for (const int64_t time_ns : {int64_t{1}, int64_t{1'000'000'000'000'000'000}}) {
    never.Exit(0, ExitCode(1), time_ns);
    never.StopAll();
    never.ExecuteAll();
    never.Feed(Progressed{static_cast<uint64_t>(time_ns)});
  }
  EXPECT_EQ(never.gang.user_faults(), 2U);
}

TEST_F(GangRestart, WithNoRestartsAllowedTheFirstFaultEndsTheGang) {
  Rig none(1, 2, 0);
  none.Run();
  none.Exit(0, ExitCode(1));
  none.Stopped(0);
  EXPECT_EQ(none.gang.state(), State::kFinished);
}

class GangStopCodes : public ::testing::Test {
 protected:
  static Settings With93() {
    Settings settings = Rig::WithSpares(3, 2, 1);
    settings.stop_codes = {93, 94};
    return settings;
  }
  void SetUp() override {
    rig.Run();
    rig.Feed(JobFacts{.batch_node = std::nullopt, .can_requeue = true});
  }
  void ExpectOver(uint32_t cause) {
    rig.StopAll();
    ASSERT_TRUE(rig.Did<ReportToJob>());
    EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("by this code the program asks that the gang ends"));
    EXPECT_FALSE(rig.Did<RequeueJob>());
    ASSERT_EQ(rig.gang.state(), State::kFinished);
    EXPECT_FALSE(rig.gang.succeeded());
    EXPECT_EQ(rig.gang.finish_cause(), cause) << "its code is srun's";
  }
  Rig rig{With93()};
};

TEST_F(GangStopCodes, EndTheGangForGood) {
  rig.Exit(1, ExitCode(94));
  ExpectOver(1);
}

TEST_F(GangStopCodes, WaitForNoNodeThatIsAway) {
  rig.Feed(NodeLeft{0});
  rig.Exit(2, ExitCode(93));
  rig.Stopped(1);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangStopCodes, AlsoWhileAnotherFaultStopsTheGeneration) {
  rig.Feed(MemberExited{0, 1, {.status = SIGKILL, .time_ns = 1'000, .cause = CauseClass::kInfrastructure}});
  rig.Exit(3, ExitCode(93), 2'000);
  ExpectOver(3);
}

TEST_F(GangStopCodes, WinOverARequeue) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000});
  rig.Feed(CheckpointCommitted{40});
  ASSERT_EQ(rig.gang.state(), State::kStopping);
  rig.Exit(2, ExitCode(93), 2'000);
  ExpectOver(2);
}

TEST_F(GangStopCodes, WinOverTheRequeueAfterSlurmsSignal) {
  rig.Feed(EndNear{.cause = CauseClass::kTimeLimit, .left_ms = 90'000, .signalled = true});
  rig.Exit(0, ExitCode(0));
  rig.Exit(1, ExitCode(93));
  rig.Exit(2, ExitCode(0));
  rig.Exit(3, ExitCode(0));
  ExpectOver(1);
}

TEST_F(GangStopCodes, AreTheFirstOnesWord) {
  rig.Exit(2, ExitCode(93), 2'000);
  rig.Exit(3, ExitCode(94), 1'000);
  ExpectOver(3);
}

TEST_F(GangStopCodes, AreFoundByWhoTakesOver) {
  Memory memory{.generation = 1, .running = true, .active = {0, 1}};
  rig = Rig(With93(), memory);
  NodeJoined joined = rig.Node(0, MemberState::kRunning, 1);
  joined.members[1].state = MemberState::kExited;
  joined.members[1].exit = Exit{.status = ExitCode(93), .time_ns = 1'000};
  rig.Feed(joined);
  rig.Join(1, MemberState::kRunning, 1);
  rig.Join(2);
  ExpectOver(1);
}

TEST_F(GangStopCodes, OfASidecarAndOtherCodesEndNothing) {
  rig.Exit(1, ExitCode(92));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  rig.ExecuteAll();
  rig.Exit(1, 93);  // a signal's number
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  Settings settings = With93();
  settings.roles = {Role{}, Role{.name = "log", .kind = RoleKind::kSidecar}};
  settings.node_roles = {0, 0, 1};
  rig = Rig(settings);
  rig.Run();
  rig.Exit(4, ExitCode(93));
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST_F(GangRestart, AnOutOfMemoryKillCountsAsTheUsersFault) {
  rig.Feed(MemberExited{0, 1, {.status = SIGKILL, .oom_killed = true}});
  rig.StopAll();
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("out-of-memory killer"));
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("OUT_OF_MEMORY even if it goes on well"));
}

TEST_F(GangRestart, TheElevenRestartWithoutProgressIsNotMade) {
  Rig many(1, 1, 1000);
  many.Run();
  for (uint32_t i = 0; i < kMaxRestartsWithoutProgress; ++i) {
    many.Restart();
    ASSERT_EQ(many.gang.state(), State::kRunning) << i;
  }
  many.Exit(0, ExitCode(1));
  many.Stopped(0);
  EXPECT_EQ(many.gang.state(), State::kFinished);
  EXPECT_THAT(many.Did<ReportToJob>()->text, HasSubstr("10 restarts without progress"));
}

class GangProgress : public ::testing::Test {
 protected:
  GangProgress() {
    rig.Run();
    for (uint32_t i = 0; i < kMaxRestartsWithoutProgress; ++i) rig.Restart();
  }
  [[nodiscard]] State AfterOneMoreFault() {
    rig.Exit(0, ExitCode(1));
    rig.Stopped(0);
    return rig.gang.state();
  }
  Rig rig{1, 1, 1000};
};

TEST_F(GangProgress, AStepBeyondTheFarthestResetsTheCount) {
  rig.Feed(Progressed{1});
  EXPECT_EQ(AfterOneMoreFault(), State::kStarting);
}

TEST_F(GangProgress, ACommittedCheckpointResetsTheCount) {
  rig.Feed(CheckpointCommitted{1});
  EXPECT_EQ(AfterOneMoreFault(), State::kStarting);
}

TEST_F(GangProgress, AGenerationThatRunsLongEnoughResetsTheCount) {
  rig.Feed(TimerFired{Timer::kProgress});
  EXPECT_EQ(AfterOneMoreFault(), State::kStarting);
}

TEST_F(GangProgress, AStepThatWasReachedBeforeIsNoProgress) {
  Rig again(1, 1, 1000);
  again.Run();
  again.Feed(Progressed{5});
  for (uint32_t i = 0; i < kMaxRestartsWithoutProgress; ++i) {
    again.Restart();
    again.Feed(Progressed{5});
  }
  again.Exit(0, ExitCode(1));
  again.Stopped(0);
  EXPECT_EQ(again.gang.state(), State::kFinished);
}

TEST_F(GangRestart, ABadCheckpointIsRejectedAndTheRestartIsFree) {
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40, .reason = "chunk 3 has another digest"});
  ASSERT_TRUE(rig.Did<RejectCheckpoint>());
  EXPECT_EQ(rig.Did<RejectCheckpoint>()->step, 40U);
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.gang.user_faults(), 0U);
  EXPECT_THAT(rig.Did<ReportToJob>()->text,
              HasSubstr("rank 2 on n1: the checkpoint of step 40 does not verify: chunk 3"));
}

TEST_F(GangRestart, ABadCheckpointIsRejectedOnceHoweverManyMembersFindIt) {
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40});
  rig.Feed(CheckpointBad{.task = 0, .generation = 1, .step = 40});
  EXPECT_TRUE(rig.actions.empty());
}

// Who waited for the one that could not read it may end first.
TEST_F(GangRestart, ABadCheckpointThatIsHeardOfBehindAnExitIsTheCauseAllTheSame) {
  rig.Exit(1, ExitCode(1));
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40, .reason = "chunk 3 has another digest"});
  ASSERT_TRUE(rig.Did<RejectCheckpoint>());
  EXPECT_EQ(rig.gang.user_faults(), 0U);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("the checkpoint of step 40 does not verify"));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

// The next generation starts from the new one, which is as good as any.
TEST_F(GangRestart, ABadCheckpointThatHasBeenSavedAnewIsTheCauseAndIsNotRejected) {
  rig.Exit(1, ExitCode(1));
  EXPECT_EQ(rig.gang.user_faults(), 1U);
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40, .reason = "no", .saved_anew = true});
  EXPECT_FALSE(rig.Did<RejectCheckpoint>());
  EXPECT_EQ(rig.gang.user_faults(), 0U);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.Did<ReportToJob>()->text,
              HasSubstr("the checkpoint of step 40 does not verify: no; it has been saved anew since"));
}

// The program may go on, or not.
TEST_F(GangRestart, ABadCheckpointThatHasBeenSavedAnewStopsNothingAndExcusesTheEndThatMayFollow) {
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40, .reason = "no", .saved_anew = true});
  EXPECT_TRUE(rig.actions.empty());
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(2, ExitCode(1));
  EXPECT_TRUE(rig.Did<StopGeneration>());
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangRestart, ANodeThatComesBackWithABadCheckpointAndAnExitSaysTheFormer) {
  rig.Feed(NodeLeft{1});
  NodeJoined back = rig.Node(1, MemberState::kExited, 1);
  back.members[0].exit = gang::Exit{.status = ExitCode(1)};
  back.checkpoint_bad = CheckpointBad{.task = 2, .generation = 1, .step = 40, .reason = "no"};
  rig.Feed(back);
  ASSERT_TRUE(rig.Did<RejectCheckpoint>());
  rig.StopAll();
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangRestart, ABadCheckpointOfAnOlderGenerationIsIgnored) {
  rig.Restart();
  rig.Feed(CheckpointBad{.task = 2, .generation = 1, .step = 40});
  EXPECT_TRUE(rig.actions.empty());
}

TEST(DescribeStatus, NamesCodesSignalsAndTheOutOfMemoryKiller) {
  EXPECT_EQ(DescribeStatus(ExitCode(3), false), "exited with code 3");
  EXPECT_EQ(DescribeStatus(SIGKILL, false), "was killed by SIGKILL");
  EXPECT_EQ(DescribeStatus(SIGSEGV | 0x80, false), "was killed by SIGSEGV (core dumped)");
  EXPECT_EQ(DescribeStatus(64, false), "was killed by signal 64");
  EXPECT_THAT(DescribeStatus(SIGKILL, true), HasSubstr("out-of-memory"));
}

}  // namespace
}  // namespace muster::gang
