// The links are tested before the first generation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Settings WithTest(uint32_t nodes, uint32_t spares, uint32_t min = 0) {
  Settings settings = Rig::WithSpares(nodes, 1, spares, min);
  settings.preflight = true;
  return settings;
}

// Four nodes; n3 is the spare.
class GangPreflight : public ::testing::Test {
 protected:
  GangPreflight() { rig.JoinAll(); }

  void Verdict(uint64_t test, std::vector<LinkVerdict::Bad> bad = {},
               std::vector<std::string> warnings = {}) {
    rig.Feed(LinksTested{.node = leader,
                         .test = test,
                         .lease_port = 21000,
                         .verdict = LinkVerdict{std::move(bad), std::move(warnings), "it took a second"}});
  }
  [[nodiscard]] std::vector<uint32_t> Tested() const {
    const auto test = rig.Did<TestLinks>();
    return test ? test->nodes : std::vector<uint32_t>{};
  }
  [[nodiscard]] std::string Notes() const {
    std::string all;
    for (const Note& note : rig.All<Note>()) {
      if (note.kind == "links") all += note.text + "\n";
    }
    return all;
  }

  uint32_t leader = 0;
  Rig rig{WithTest(4, 1)};
};

TEST_F(GangPreflight, TheNodesThatWouldRunAreTestedBeforeAnythingRuns) {
  EXPECT_EQ(rig.gang.state(), State::kTesting);
  EXPECT_THAT(Tested(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(rig.Did<StartGeneration>());
  EXPECT_EQ(rig.TimerSet(Timer::kTest), 60'000);
  EXPECT_EQ(rig.gang.generation(), 0U);
}

TEST_F(GangPreflight, WithGoodLinksItStarts) {
  Verdict(1);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_EQ(rig.gang.generation(), 1U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
  EXPECT_EQ(rig.gang.nodes()[0].lease_port, 21000) << "the port of the test is not the program's";
  EXPECT_EQ(rig.TimerSet(Timer::kTest), -1);
  EXPECT_THAT(Notes(), HasSubstr("it took a second"));
  EXPECT_FALSE(rig.Did<ReportToJob>());
  rig.ExecuteAll();
  rig.Restart();
  EXPECT_EQ(rig.gang.generation(), 2U) << "and is not tested again";
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangPreflight, ASpareTakesABadNodesPlaceWhenItIsTestedToo) {
  Verdict(1, {{1, "9.6 of 20 Mbit/s arrive from n1"}});
  EXPECT_EQ(rig.gang.state(), State::kTesting);
  EXPECT_THAT(Tested(), ElementsAre(0, 2, 3));
  EXPECT_THAT(Notes(), HasSubstr("node n1 is left out: 9.6 of 20 Mbit/s arrive from n1"));
  ASSERT_TRUE(rig.Did<ReportToJob>());
  EXPECT_FALSE(rig.Did<DrainInSlurm>()) << "a user's program has said it";
  Verdict(1, {{0, "of the first test, doubled"}});
  EXPECT_EQ(rig.gang.state(), State::kTesting);
  Verdict(2);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 3));
}

TEST_F(GangPreflight, WithoutASpareItStartsWithAWarning) {
  Verdict(1, {{1, "slow"}});
  Verdict(2, {{3, "slow as well"}});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 3));
  EXPECT_THAT(Notes(), HasSubstr("node n3 stays, for no spare can take its place: slow as well"));
  ASSERT_TRUE(rig.Did<ReportToJob>());
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("muster: gang 12.0: node n3 stays"));
}

TEST_F(GangPreflight, ItDoesNotShrinkForABadLink) {
  Rig few(WithTest(3, 0, 2));
  few.JoinAll();
  few.Feed(LinksTested{.node = 0, .test = 1, .verdict = LinkVerdict{{{2, "slow"}}, {}, ""}});
  EXPECT_EQ(few.gang.state(), State::kStarting);
  EXPECT_THAT(few.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangPreflight, WhatIsNoSingleNodesIsAWarning) {
  Verdict(1, {}, {"Nothing arrives from n0 to n1"});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("Nothing arrives from n0 to n1"));
}

TEST_F(GangPreflight, AVerdictOfNodesThatAreNotTestedIsIgnored) {
  Verdict(1, {{3, "the spare"}, {77, "nobody"}});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_TRUE(rig.gang.IsSpare(3));
}

TEST_F(GangPreflight, OnlyTheNodeThatLeadsIsListenedTo) {
  leader = 1;
  Verdict(1);
  EXPECT_EQ(rig.gang.state(), State::kTesting);
}

TEST_F(GangPreflight, WithoutAVerdictItStartsAndSaysWhy) {
  rig.Feed(LinksTested{.node = 0, .test = 1, .error = "cannot start muster: No such file or directory"});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.Did<ReportToJob>()->text, HasSubstr("the links are not tested: cannot start muster"));
}

TEST_F(GangPreflight, ALostNodeThatIsBackAndHasStoppedWhatRanThereIsOfUse) {
  Memory memory;
  memory.running = true;
  memory.generation = 1;
  memory.active = {0, 1, 2};
  Rig taken_over(WithTest(4, 1), memory);
  for (const uint32_t node : {0, 2, 3}) taken_over.Join(node);
  taken_over.Silence(1);
  ASSERT_EQ(taken_over.gang.state(), State::kTesting);
  taken_over.Join(1, MemberState::kRunning, 1);
  ASSERT_TRUE(taken_over.Did<StopGeneration>());
  taken_over.Feed(NodeStopped{1, 1});
  taken_over.Feed(LinksTested{.node = 0, .test = 1, .verdict = LinkVerdict{{{3, "slow"}}, {}, ""}});
  EXPECT_EQ(taken_over.gang.state(), State::kTesting);
  ASSERT_TRUE(taken_over.Did<TestLinks>());
  EXPECT_THAT(taken_over.Did<TestLinks>()->nodes, ElementsAre(0, 1, 2));
}

TEST_F(GangPreflight, NobodyWaitsForAVerdictForEver) {
  rig.Feed(TimerFired{Timer::kTest});
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(Notes(), HasSubstr("there is no verdict after 60 s"));
  Verdict(1, {{1, "late"}});
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangPreflight, ALostNodeIsReplacedAndTheRestIsTestedAgain) {
  rig.Silence(2);
  EXPECT_TRUE(rig.Did<LoseNode>());
  EXPECT_THAT(Tested(), ElementsAre(0, 1, 3));
  Verdict(2);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 3));
}

TEST_F(GangPreflight, WithoutRoomTheJobIsRequeuedAsLater) {
  rig.Feed(JobFacts{.can_requeue = true});
  rig.Silence(2);
  rig.Silence(1);
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangPreflight, ASickNodeIsReplacedToo) {
  rig.Feed(NodeSick{0, "its disk is full"});
  EXPECT_THAT(Tested(), ElementsAre(1, 2, 3));
  leader = 1;
  Verdict(2);
  EXPECT_THAT(rig.gang.active(), ElementsAre(1, 2, 3));
}

TEST_F(GangPreflight, AMusterdThatComesBackIsTestedAgain) {
  rig.Feed(NodeLeft{1});
  EXPECT_EQ(rig.gang.state(), State::kTesting);
  rig.Join(1);
  EXPECT_THAT(Tested(), ElementsAre(0, 1, 2));
  EXPECT_EQ(rig.Did<TestLinks>()->test, 2U);
}

TEST_F(GangPreflight, OneThatIsAwayWhenTheVerdictComesIsWaitedFor) {
  rig.Feed(NodeLeft{1});
  Verdict(1);
  EXPECT_EQ(rig.gang.state(), State::kTesting);
  rig.Join(1);
  EXPECT_EQ(rig.gang.state(), State::kStarting) << "the links are known";
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangPreflight, OneThatIsAwayAndDiesIsReplaced) {
  rig.Feed(NodeLeft{1});
  Verdict(1);
  rig.Silence(1);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 3));
}

TEST_F(GangPreflight, OneThatComesBackWithoutASupervisorIsReplacedOnce) {
  rig.Feed(NodeLeft{1});
  Verdict(1);
  NodeJoined joined = rig.Node(1);
  joined.members[0].state = MemberState::kStopped;
  joined.members[0].exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
  rig.Feed(joined);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_EQ(rig.gang.generation(), 1U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 3));
}

TEST_F(GangPreflight, ATestThatIsSpoiledAgainAndAgainIsGivenUp) {
  for (int i = 0; i < 2; ++i) {
    rig.Feed(NodeLeft{1});
    rig.Join(1);
    EXPECT_EQ(rig.gang.state(), State::kTesting);
  }
  rig.Feed(NodeLeft{1});
  rig.Join(1);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(Notes(), HasSubstr("the gang starts without another one"));
}

TEST_F(GangPreflight, ALostSupervisorOfOneThatIsTestedIsReplaced) {
  rig.LoseSupervisor(1);
  EXPECT_THAT(Tested(), ElementsAre(0, 2, 3));
}

TEST_F(GangPreflight, ASpareThatGoesChangesNothing) {
  rig.Silence(3);
  EXPECT_FALSE(rig.Did<TestLinks>());
  Verdict(1);
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST_F(GangPreflight, SlurmMayEndTheJobMeanwhile) {
  rig.Feed(Terminating{0, SIGTERM});
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.gang.succeeded());
}

TEST_F(GangPreflight, WhoTakesOverBeginsAnew) {
  const Memory memory = rig.gang.Remember();
  Rig next(WithTest(4, 1), memory);
  next.JoinAll();
  EXPECT_EQ(next.gang.state(), State::kTesting);
  EXPECT_EQ(next.gang.generation(), 0U);
}

TEST_F(GangPreflight, WhoTakesOverFromADeadCoordinatorKnowsThatItsNodeHadJoined) {
  EXPECT_TRUE(rig.Did<Persist>());
  Rig next(WithTest(4, 1), rig.gang.Remember());
  for (const uint32_t node : {0U, 2U, 3U}) next.Join(node);
  next.Feed(AbsentProbed{{1}});
  EXPECT_EQ(next.gang.state(), State::kRecovering) << "the step's launch has not failed";
  next.Silence(1);
  ASSERT_TRUE(next.Did<TestLinks>());
  EXPECT_THAT(next.Did<TestLinks>()->nodes, ElementsAre(0, 2, 3));
}

TEST_F(GangPreflight, WhoTakesOverFindsTheNodesThatWereLeftOut) {
  Verdict(1, {{1, "slow"}});
  Rig next(WithTest(4, 1), rig.gang.Remember());
  next.JoinAll();
  ASSERT_TRUE(next.Did<TestLinks>());
  EXPECT_THAT(next.Did<TestLinks>()->nodes, ElementsAre(0, 2, 3));
}

class GangPreflightAgain : public ::testing::Test {
 protected:
  void Join(uint32_t node, const std::string& test) {
    NodeJoined joined = rig.Node(node);
    joined.links_test = test;
    rig.Feed(joined);
  }
  Rig rig{WithTest(3, 1)};
};

TEST_F(GangPreflightAgain, WhatOneTestHasFoundGoodAShortTimeAgoIsNotTested) {
  Join(0, "11.0 1.1");
  Join(1, "11.0 1.1");
  Join(2, "");  // the spare
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  EXPECT_THAT(rig.NoteOf("links"),
              HasSubstr("the links between 2 nodes were found good a short time ago, in test 11.0 1.1"));
}

TEST_F(GangPreflightAgain, LinksBetweenNodesOfTwoTestsAreTested) {
  Join(0, "11.0 1.1");
  Join(1, "10.0 1.1");
  Join(2, "11.0 1.1");
  EXPECT_EQ(rig.gang.state(), State::kTesting);
}

TEST_F(GangPreflightAgain, WhatANewerTestHasSeenCounts) {
  Join(0, "11.0 1.1");
  Join(1, "");
  Join(2, "11.0 1.1");
  rig.Feed(LinksTested{.node = 0, .test = 1, .verdict = LinkVerdict{{{1, "slow"}}, {}, ""}});
  ASSERT_TRUE(rig.Did<TestLinks>());
  EXPECT_THAT(rig.Did<TestLinks>()->nodes, ElementsAre(0, 2));
}

TEST_F(GangPreflightAgain, ANodeThatNobodyHasTestedIsTested) {
  Join(0, "11.0 1.1");
  Join(1, "");
  Join(2, "11.0 1.1");
  EXPECT_EQ(rig.gang.state(), State::kTesting);
}

TEST(GangPreflightSizes, OneNodeHasNoLinks) {
  Rig rig(WithTest(1, 0));
  rig.JoinAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

TEST(GangPreflightSizes, WithoutTheOptionNothingIsTested) {
  Rig rig(Rig::WithSpares(4, 1, 1));
  rig.JoinAll();
  EXPECT_EQ(rig.gang.state(), State::kStarting);
}

}  // namespace
}  // namespace muster::gang
