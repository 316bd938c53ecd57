#include "daemon/hang/detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/hang_rig.h"

namespace muster::hang {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kSecond = kSecondNs;
constexpr int64_t kMinute = 60 * kSecond;

constexpr Gang::Load kIdle{0, 0};
constexpr Gang::Load kSpinning{1.0, 0};

void All(Gang& gang, Gang::Load load) {
  for (const Member& member : gang.members) gang.Works(member.rank, load);
}

TEST(HangDetector, TheRankThatDidNotEnterTheStepIsNamed) {
  Gang gang(8);
  ASSERT_FALSE(gang.Train(50, kSecond));
  All(gang, kSpinning);
  gang.Works(5, kIdle);
  gang.Pass(kSecond);
  ++gang.step;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    if (rank != 5) gang.Step(rank, gang.step);
  }
  const int64_t began = gang.now;
  const auto verdict = gang.Pass(kMinute * 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(5));
  EXPECT_LE(gang.now - began, 121 * kSecond);  // it does nothing: the short floor counts
  EXPECT_GE(gang.now - began, 120 * kSecond);
  EXPECT_THAT(verdict->text, HasSubstr("rank 5 on n1 did not enter step 51, as 7 others did"));
  EXPECT_THAT(verdict->text, HasSubstr("limit 2 min 0 s"));
  ASSERT_EQ(verdict->positions.size(), 8u);
  EXPECT_EQ(verdict->positions[5].step, 50u);
  EXPECT_EQ(verdict->positions[5].doing, Position::Doing::kIdle);
  EXPECT_EQ(verdict->positions[4].step, 51u);
  EXPECT_EQ(verdict->positions[4].doing, Position::Doing::kBusy);
}

TEST(HangDetector, ARankThatMayBeAtWorkIsGivenTheLongFloor) {
  for (const bool known : {true, false}) {
    Gang gang(4);
    ASSERT_FALSE(gang.Train(50, kSecond));
    if (known) All(gang, kSpinning);
    for (uint32_t rank = 1; rank < 4; ++rank) gang.Step(rank, 51);
    const int64_t began = gang.now;
    const auto verdict = gang.Pass(kMinute * 60);
    ASSERT_TRUE(verdict);
    EXPECT_THAT(verdict->culprits, ElementsAre(0));
    EXPECT_EQ(gang.now - began, 600 * kSecond);
  }
}

TEST(HangDetector, LongStepsRaiseTheLimit) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, 5 * kMinute));
  const int64_t began = gang.now;
  const auto verdict = gang.Pass(kMinute * 240);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(gang.now - began, 25 * kMinute);
  EXPECT_THAT(verdict->limit_source, HasSubstr("5 times a step, which takes 5 min 0 s"));
}

TEST(HangDetector, AShortLimitOfTheUserCountsFromTheFirstStepOn) {
  Settings settings;
  settings.limit_ns = 5 * kSecond;
  Gang gang(4, settings);
  EXPECT_FALSE(gang.Pass(10 * kMinute));  // it has not called progress() yet
  ASSERT_FALSE(gang.Train(2, kSecond));
  gang.Step(0, 3);
  const int64_t began = gang.now;
  const auto verdict = gang.Pass(kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(gang.now - began, 5 * kSecond);
  EXPECT_EQ(verdict->limit_ns, 5 * kSecond);
  EXPECT_EQ(verdict->limit_source, "hang=5.0 s");
  EXPECT_THAT(verdict->culprits, ElementsAre(1, 2, 3));
}

TEST(HangDetector, OffMeansNever) {
  Settings settings;
  settings.limit_ns = 0;
  Gang gang(4, settings);
  All(gang, kIdle);
  EXPECT_FALSE(gang.Pass(300 * kMinute));
  EXPECT_FALSE(gang.Train(20, kSecond));
  EXPECT_FALSE(gang.Pass(300 * kMinute));
}

TEST(HangDetector, OneVerdictAGeneration) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(20, kSecond));
  ASSERT_TRUE(gang.Pass(11 * kMinute));
  EXPECT_FALSE(gang.Pass(300 * kMinute));
}

TEST(HangDetector, NothingIsJudgedBetweenGenerations) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(20, kSecond));
  gang.detector.GenerationEnded();
  EXPECT_FALSE(gang.Pass(300 * kMinute));
}

TEST(HangDetector, TheStartMayTakeLong) {
  Gang gang(4);
  EXPECT_FALSE(gang.Pass(25 * kMinute));
  gang.StepAll(1);
  EXPECT_FALSE(gang.Pass(29 * kMinute));  // the compiler, in the first step
  gang.StepAll(2);
  EXPECT_FALSE(gang.Pass(29 * kMinute));
  const auto verdict = gang.Pass(2 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->limit_source, HasSubstr("the start"));
}

TEST(HangDetector, AStartThatNeverEndsIsFoundOnceItIsKnownThatTheProgramSteps) {
  Gang gang(4);
  ASSERT_FALSE(gang.Pass(3 * kMinute));
  ASSERT_FALSE(gang.Train(20, kSecond));
  gang.Restart();
  All(gang, kSpinning);  // in the communicator's initialisation: it looks like work
  const int64_t began = gang.now;
  const auto verdict = gang.Pass(300 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(gang.now - began, 10 * kMinute);
  EXPECT_THAT(verdict->text, HasSubstr("has not begun to step"));
}

// ---- before the first step

Settings Startup(int64_t ns) {
  Settings settings;
  settings.first_step_ns = ns;
  return settings;
}

TEST(HangDetector, AGivenStartupCountsUpToTheFirstStep) {
  Gang gang(4, Startup(20 * kSecond));
  gang.OpenAll();
  const int64_t began = gang.now;
  const auto verdict = gang.Pass(kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(gang.now - began, 20 * kSecond);
  EXPECT_EQ(verdict->limit_source, "startup=20.0 s");
  EXPECT_THAT(verdict->text, HasSubstr("role worker has not begun to step 20.0 s after the start"));
  EXPECT_THAT(verdict->text, HasSubstr("all do the same"));

  Gang steps(4, Startup(20 * kSecond));
  steps.OpenAll();
  ASSERT_FALSE(steps.Pass(19 * kSecond));
  steps.Step(0, 1);
  EXPECT_FALSE(steps.Pass(29 * kMinute)) << "from there on the other limits hold";
}

// An evaluator waits for the trainer's checkpoints.
TEST(HangDetector, AGivenStartupDoesNotCountForARoleThatMayWaitForAnotherOne) {
  Gang gang(2, Startup(10 * kMinute));
  gang.members[1].role = "evaluator";
  gang.Restart();
  gang.StepAll(1);
  ASSERT_FALSE(gang.Say());
  gang.Restart();
  gang.OpenAll();
  for (uint64_t step = 2; step < 27; ++step) {
    gang.Step(0, step);
    ASSERT_FALSE(gang.Pass(kMinute)) << step;
  }
}

TEST(HangDetector, AGivenStartupIsNotLengthenedByVerdictsOrByAShortOrALongHang) {
  Settings settings = Startup(20 * kSecond);
  for (const std::optional<int64_t> limit :
       {std::optional<int64_t>(), std::optional(5 * kSecond), std::optional(kMinute)}) {
    settings.limit_ns = limit;
    Gang gang(4, settings);
    for (int attempt = 0; attempt < 3; ++attempt) {
      gang.OpenAll();
      const int64_t began = gang.now;
      ASSERT_TRUE(gang.Pass(kMinute));
      EXPECT_EQ(gang.now - began, 20 * kSecond);
      gang.Restart();
    }
  }
}

TEST(HangDetector, ARankThatHasNotOpenedTheGangIsNamed) {
  Gang gang(4, Startup(20 * kSecond));
  gang.OpenAll();
  gang.reports[2].opened = false;
  const auto verdict = gang.Pass(kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(2));
  EXPECT_THAT(verdict->text, HasSubstr("rank 2 on n0 has not opened the gang, as 3 others have"));
}

TEST(HangDetector, WhereOneRankAloneOpensTheGangTheOthersAreNotNamedForIt) {
  Gang gang(4, Startup(20 * kSecond));
  gang.reports[0].opened = true;
  All(gang, kSpinning);
  gang.Works(3, kIdle);
  const auto verdict = gang.Pass(kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(3));
  EXPECT_THAT(verdict->text, HasSubstr("rank 3 on n0 does nothing while the others are busy"));
}

TEST(HangDetector, AProgramThatHasNotOpenedItsGangIsNotEndedByAGivenStartup) {
  Gang gang(4, Startup(20 * kSecond));
  All(gang, kSpinning);
  EXPECT_FALSE(gang.Pass(300 * kMinute));
}

TEST(HangDetector, ARoleThatNeverStepsIsNotEndedByAGivenStartupWhileAnotherRoleSteps) {
  Gang gang(4, Startup(20 * kSecond));
  gang.members[0].role = "chief";
  gang.Restart();
  gang.OpenAll();
  for (uint64_t step = 1; step < 60; ++step) {
    for (uint32_t rank = 1; rank < 4; ++rank) gang.Step(rank, step);
    ASSERT_FALSE(gang.Pass(kSecond));
  }
}

TEST(HangDetector, ARestoreDoesNotCountAsTheStart) {
  Gang gang(4, Startup(20 * kSecond));
  gang.OpenAll();
  ASSERT_FALSE(gang.Pass(10 * kSecond));
  gang.reports[1].checkpoint_busy = true;
  EXPECT_FALSE(gang.Pass(60 * kMinute));
  gang.reports[1].checkpoint_busy = false;
  EXPECT_FALSE(gang.Pass(9 * kSecond));
  EXPECT_TRUE(gang.Pass(2 * kSecond));
}

TEST(HangDetector, ALongStartupAlsoHoldsForProgramsThatDoNothing) {
  Gang gang(4, Startup(30 * kMinute));
  All(gang, kIdle);
  EXPECT_FALSE(gang.Pass(29 * kMinute));
  const auto verdict = gang.Pass(2 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->limit_source, HasSubstr("startup="));
}

TEST(HangDetector, ALongStartupHoldsUpToTheTenthStepUnlessHangIsGiven) {
  Gang gang(4, Startup(120 * kMinute));
  gang.OpenAll();
  gang.StepAll(1);
  EXPECT_FALSE(gang.Pass(119 * kMinute));
  EXPECT_TRUE(gang.Pass(2 * kMinute));

  Settings settings = Startup(120 * kMinute);
  settings.limit_ns = kMinute;
  Gang given(4, settings);
  given.OpenAll();
  given.StepAll(1);
  EXPECT_FALSE(given.Pass(59 * kSecond));
  EXPECT_TRUE(given.Pass(2 * kSecond));
}

TEST(HangDetector, AFirstStartHasNoLimitWhileTheMembersWork) {
  Gang gang(4);
  gang.OpenAll();
  All(gang, kSpinning);
  EXPECT_FALSE(gang.Pass(600 * kMinute));
}

TEST(HangDetector, AStartMayTakeThreeTimesTheLongestSoFarHoweverFewStepsCameBehindIt) {
  Gang gang(4);
  All(gang, kSpinning);
  ASSERT_FALSE(gang.Pass(40 * kMinute));  // compilers
  gang.StepAll(1);
  gang.Pass(kSecond);
  gang.Restart();  // a fault at the second step
  EXPECT_FALSE(gang.Pass(119 * kMinute));
  const auto verdict = gang.Pass(2 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->text, HasSubstr("which took 40 min 0 s at most"));
}

TEST(HangDetector, OnANodeWhereTheProgramHasNotStartedBeforeAStartMayTakeHalfAnHour) {
  Gang gang(8);
  ASSERT_FALSE(gang.Train(20, kSecond));
  for (uint32_t rank = 4; rank < 8; ++rank) gang.members[rank].node = "spare";
  gang.Restart();
  All(gang, kSpinning);
  const int64_t began = gang.now;
  ASSERT_TRUE(gang.Pass(300 * kMinute));
  EXPECT_EQ(gang.now - began, 30 * kMinute);
}

TEST(HangDetector, WhatACoordinatorSeesOfAStartThatItHasNotSeenBeginTeachesNothing) {
  Gang gang(4);
  gang.Restart(false);
  ASSERT_FALSE(gang.Train(20, kSecond));
  EXPECT_TRUE(gang.detector.Starts().empty());
  EXPECT_FALSE(gang.detector.TakeLearned());
  gang.Restart();
  All(gang, kSpinning);
  EXPECT_FALSE(gang.Pass(300 * kMinute)) << "it may have taken an hour";
}

TEST(HangDetector, WhatWasLearnedOfStartsIsTakenOverByTheNextCoordinator) {
  Gang gang(4);
  ASSERT_FALSE(gang.Pass(15 * kMinute));
  ASSERT_FALSE(gang.Train(5, kMinute));
  EXPECT_FALSE(gang.detector.TakeLearned());
  ASSERT_FALSE(gang.Train(20, kMinute));
  EXPECT_TRUE(gang.detector.TakeLearned());
  EXPECT_FALSE(gang.detector.TakeLearned()) << "once is enough";
  const auto starts = gang.detector.Starts();
  EXPECT_EQ(starts.at("worker").first_step_ns, 16 * kMinute);
  EXPECT_EQ(starts.at("worker").tenth_step_ns, 26 * kMinute);

  Gang next(4);
  next.detector.Remember(starts, true);
  next.Restart();
  EXPECT_EQ(next.detector.Starts().at("worker").tenth_step_ns, 26 * kMinute);
  All(next, kSpinning);
  const int64_t began = next.now;
  ASSERT_TRUE(next.Pass(300 * kMinute)) << "though its program has not opened the gang";
  EXPECT_EQ(next.now - began, 78 * kMinute);
}

TEST(HangDetector, OfAnEarlierRunTheProgramMayHaveBeenOneThatSteps) {
  for (const bool opens : {false, true}) {
    Gang gang(4);
    gang.detector.Remember({{"worker", {kSecond, kSecond}}}, false);
    gang.Restart();
    All(gang, kSpinning);
    if (opens) gang.OpenAll();
    const int64_t began = gang.now;
    ASSERT_EQ(gang.Pass(300 * kMinute).has_value(), opens);
    EXPECT_EQ(gang.now - began, (opens ? 30 : 300) * kMinute);
  }
}

TEST(HangDetector, ARankThatNeverBeganIsNamed) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(20, kSecond));
  gang.Restart();
  for (uint32_t rank = 0; rank < 3; ++rank) gang.Step(rank, 0);
  const auto verdict = gang.Pass(300 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(3));
}

TEST(HangDetector, WhenAllAreAtTheSameStepTheOneThatDiffersIsNamed) {
  Gang spinning(8);
  ASSERT_FALSE(spinning.Train(50, kSecond));
  All(spinning, kSpinning);
  spinning.Works(3, kIdle);
  auto verdict = spinning.Pass(kMinute * 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(3));
  EXPECT_THAT(verdict->text, HasSubstr("rank 3 on n0 does nothing while the others are busy"));

  Gang waiting(8);
  ASSERT_FALSE(waiting.Train(50, kSecond));
  All(waiting, kIdle);
  waiting.Works(6, kSpinning);
  verdict = waiting.Pass(kMinute * 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(6));

  Gang blocked(8);
  ASSERT_FALSE(blocked.Train(50, kSecond));
  All(blocked, kIdle);
  blocked.Works(2, {0, 0, {}, 3});
  verdict = blocked.Pass(kMinute * 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(2));
  EXPECT_THAT(verdict->text, HasSubstr("waits in the kernel"));

  Gang same(8);
  ASSERT_FALSE(same.Train(50, kSecond));
  All(same, kIdle);
  verdict = same.Pass(kMinute * 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, IsEmpty());
  EXPECT_THAT(verdict->text, HasSubstr("all are at the same step"));
}

TEST(HangDetector, OnlyRankZeroCallingProgressIsNoReasonToNameTheOthers) {
  Gang gang(4);
  for (uint64_t step = 1; step <= 20; ++step) {
    gang.Step(0, step);
    ASSERT_FALSE(gang.Pass(kSecond));
  }
  All(gang, kSpinning);
  gang.Works(2, kIdle);
  const auto verdict = gang.Pass(kMinute * 60);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(2));
}

TEST(HangDetector, ASaveThatTakesLongIsNoHang) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  gang.reports[2].checkpoint_busy = true;
  EXPECT_FALSE(gang.Pass(120 * kMinute));
  gang.reports[2].checkpoint_busy = false;
  EXPECT_FALSE(gang.Pass(9 * kMinute));
  EXPECT_TRUE(gang.Pass(2 * kMinute));
}

TEST(HangDetector, ASuspendedGangIsNoHang) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  for (auto& [rank, report] : gang.reports) report.suspended = true;
  EXPECT_FALSE(gang.Pass(600 * kMinute));
  for (auto& [rank, report] : gang.reports) report.suspended = false;
  EXPECT_FALSE(gang.Train(50, kSecond));
}

TEST(HangDetector, SayingTheSameStepAgainMeansThatALongPhaseGoesOn) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  for (int i = 0; i < 30; ++i) {
    ASSERT_FALSE(gang.Pass(9 * kMinute));
    gang.Step(0, 50);
  }
}

TEST(HangDetector, APauseThatEndedByItselfIsToleratedTwiceAsLong) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  ASSERT_FALSE(gang.Pass(9 * kMinute));  // a validation
  ASSERT_FALSE(gang.Train(50, kSecond));
  EXPECT_FALSE(gang.Pass(17 * kMinute));
  const auto verdict = gang.Pass(2 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->limit_source, HasSubstr("longest pause"));
}

TEST(HangDetector, AVerdictThatWasWrongIsNotRepeatedForEver) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(100, kSecond));
  int verdicts = 0;
  // A phase of 35 minutes after step 100, in every attempt.
  for (int attempt = 0; attempt < 5; ++attempt) {
    if (!gang.Pass(35 * kMinute)) break;
    ++verdicts;
    gang.step = 80;  // the checkpoint
    gang.Restart();
    ASSERT_FALSE(gang.Train(20, kSecond));
  }
  EXPECT_EQ(verdicts, 1);
  ASSERT_FALSE(gang.Train(100, kSecond));
}

TEST(HangDetector, ATrueHangIsFoundEachTime) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(100, kSecond));
  for (int attempt = 0; attempt < 3; ++attempt) {
    ASSERT_TRUE(gang.Pass(200 * kMinute));
    gang.step = 80;
    gang.Restart();
    ASSERT_FALSE(gang.Train(20, kSecond));
  }
}

TEST(HangDetector, AMemberThatHasExitedHoldsNobodyUp) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  gang.detector.MemberExited(0);
  gang.reports.erase(0);
  for (uint64_t step = 51; step < 1000; ++step) {
    ASSERT_FALSE(gang.Pass(10 * kSecond));
    for (uint32_t rank = 1; rank < 4; ++rank) gang.Step(rank, step);
  }
}

TEST(HangDetector, OneThatStandsStillWhileOthersStepIsGivenThreeTimesAsLong) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  const int64_t began = gang.now;
  std::optional<Verdict> verdict;
  for (uint64_t step = 51; !verdict && gang.now - began < 120 * kMinute; ++step) {
    for (uint32_t rank = 0; rank < 3; ++rank) gang.Step(rank, step);
    verdict = gang.Pass(kSecond);
  }
  ASSERT_TRUE(verdict);
  EXPECT_EQ(gang.now - began, 30 * kMinute);
  EXPECT_THAT(verdict->culprits, ElementsAre(3));
}

TEST(HangDetector, AnAgentThatIsNotHeardIsNoHang) {
  Gang gang(4);
  ASSERT_FALSE(gang.Train(50, kSecond));
  gang.silent[3] = true;
  EXPECT_FALSE(gang.Pass(120 * kMinute));
}

TEST(HangDetector, WithoutProgressAGangThatDoesNothingAtAllHangs) {
  Gang gang(4);
  All(gang, {0.005, 500});  // what pollers take
  const auto verdict = gang.Pass(60 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_GE(verdict->stalled_ns, 10 * kMinute);
  EXPECT_THAT(verdict->culprits, IsEmpty());
  EXPECT_THAT(verdict->text, HasSubstr("no member has used CPU"));
}

TEST(HangDetector, WithoutProgressAShortLimitOfTheUserDoesNotCount) {
  Settings settings;
  settings.limit_ns = 5 * kSecond;
  Gang gang(4, settings);
  All(gang, kIdle);
  EXPECT_FALSE(gang.Pass(9 * kMinute));
  EXPECT_TRUE(gang.Pass(2 * kMinute));
}

TEST(HangDetector, WithoutProgressALongLimitOfTheUserCounts) {
  Settings settings;
  settings.limit_ns = 30 * kMinute;
  Gang gang(4, settings);
  All(gang, kIdle);
  EXPECT_FALSE(gang.Pass(29 * kMinute));
  const auto verdict = gang.Pass(2 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->limit_source, HasSubstr("hang="));
}

TEST(HangDetector, WithoutProgressOneMemberThatWorksKeepsTheGangAlive) {
  for (const Gang::Load& load : {Gang::Load{0.05, 0}, Gang::Load{0, 4096}, Gang::Load{0, 0, true}}) {
    Gang gang(4);
    All(gang, kIdle);
    gang.Works(2, load);
    EXPECT_FALSE(gang.Pass(120 * kMinute));
  }
}

TEST(HangDetector, WithoutProgressAnUnknownMemberKeepsTheGangAlive) {
  Gang gang(4);
  All(gang, kIdle);
  gang.loads.erase(1);
  EXPECT_FALSE(gang.Pass(120 * kMinute));
}

TEST(HangDetector, UntrackedMembersNeitherHangAGangNorKeepItAlive) {
  Gang gang(4);
  gang.members[3].tracked = false;
  gang.Restart();
  ASSERT_FALSE(gang.Train(20, kSecond));
  gang.Works(3, kSpinning);
  std::optional<Verdict> verdict;
  for (uint64_t step = 1000; !verdict && step < 2000; ++step) {
    gang.Step(3, step);
    verdict = gang.Pass(kSecond);
  }
  EXPECT_TRUE(verdict);
}

TEST(HangDetector, StepsThatCountAnewAreProgress) {
  Gang gang(4);
  for (int epoch = 0; epoch < 20; ++epoch) {
    gang.step = 0;
    ASSERT_FALSE(gang.Train(200, 10 * kSecond));
  }
  gang.Step(1, 201);
  const auto verdict = gang.Pass(60 * kMinute);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->culprits, ElementsAre(0, 2, 3));
}

TEST(HangDetector, AReportsAgeIsTakenOff) {
  Settings settings;
  settings.limit_ns = 10 * kSecond;
  Gang gang(1, settings);
  ASSERT_FALSE(gang.Train(3, kSecond));
  gang.now += 5 * kSecond;
  gang.Step(0, 4, 4 * kSecond);
  ASSERT_FALSE(gang.Say());
  EXPECT_FALSE(gang.Pass(5 * kSecond));
  EXPECT_TRUE(gang.Pass(kSecond));
}

TEST(HangDetector, DurationsAreReadable) {
  EXPECT_EQ(DurationText(850'000'000), "850 ms");
  EXPECT_EQ(DurationText(12'500'000'000), "12.5 s");
  EXPECT_EQ(DurationText(605 * kSecond), "10 min 5 s");
  EXPECT_EQ(DurationText(7260 * kSecond), "2 h 1 min");
}

// ---- whom one waited for that has ended

TEST(WaitedFor, NamesTheRankThatDidNotEnterTheStep) {
  Gang gang(4);
  gang.Train(20, kSecondNs);
  for (const uint32_t rank : {0, 1, 3}) gang.Step(rank, 21);
  gang.Say();
  EXPECT_EQ(gang.detector.WaitedFor(0), "rank 2 on n0 did not enter step 21, as 3 others did");
  EXPECT_EQ(gang.detector.WaitedFor(2), "") << "it is the one that the others waited for";
}

TEST(WaitedFor, NamesWhoDiffersWhenAllAreAtOneStep) {
  Gang gang(5);
  gang.Train(20, kSecondNs);
  for (uint32_t rank = 0; rank < 5; ++rank) gang.Works(rank, {.cores = rank == 3 ? 0.0 : 1.0});
  gang.Pass(20 * kSecondNs);
  EXPECT_EQ(gang.detector.WaitedFor(1), "rank 3 on n0 does nothing while the others are busy");
}

TEST(WaitedFor, NamesNobodyWhenNobodyOrMostStandOut) {
  Gang gang(4);
  EXPECT_EQ(gang.detector.WaitedFor(0), "") << "nothing is known";
  EXPECT_EQ(gang.detector.WaitedFor(9), "") << "there is no such rank";
  gang.Train(20, kSecondNs);
  EXPECT_EQ(gang.detector.WaitedFor(0), "");
  gang.Step(0, 21);
  gang.Say();
  EXPECT_EQ(gang.detector.WaitedFor(0), "") << "it is alone: a collective that the others do not call";
}

TEST(WaitedFor, IsKnownOfAllThatEndUntilAnotherGenerationBegins) {
  Gang gang(4);
  gang.Train(20, kSecondNs);
  for (const uint32_t rank : {0, 1, 3}) gang.Step(rank, 21);
  gang.Say();
  gang.detector.GenerationEnded();
  EXPECT_EQ(gang.detector.WaitedFor(1), "rank 2 on n0 did not enter step 21, as 3 others did");
  gang.detector.Forget();
  EXPECT_EQ(gang.detector.WaitedFor(1), "");
}

}  // namespace
}  // namespace muster::hang
