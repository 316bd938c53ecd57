// Nodes whose processes SIGKILL has ended are slow to be free.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Four nodes with a task each; n3 is the spare.
class GangExiting : public ::testing::Test {
 protected:
  explicit GangExiting(const Settings& settings = Rig::WithSpares(4, 1, 1)) : rig(settings) { rig.Run(); }
  // A fault stops the gang, and what is left on n1, or another node, only exits.
  void ExitOn(uint32_t node) {
    rig.Exit(0, ExitCode(1));
    for (uint32_t other = 0; other < rig.gang.nodes().size(); ++other) {
      if (other != node && rig.gang.nodes()[other].exiting == 0) rig.Stopped(other);
    }
    rig.Exiting(node);
  }
  void WaitOver() { rig.Feed(TimerFired{Timer::kExiting}); }
  void Leave(uint32_t node) {
    ExitOn(node);
    WaitOver();
  }
  // Of the generation that n1 was left of.
  void Free(uint32_t node, bool unsent = false) {
    rig.Feed(NodeStopped{.node = node, .generation = 1, .unsent = unsent});
  }
  Rig rig;
};

TEST_F(GangExiting, ASpareTakesThePlaceOfANodeWhoseProcessesAreSlowToGo) {
  ExitOn(1);
  EXPECT_THAT(rig.NoteOf("node_exiting"),
              HasSubstr("node n1: SIGKILL has ended all processes of generation 1"));
  EXPECT_EQ(rig.TimerSet(Timer::kExiting), 5'000);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  WaitOver();
  const auto start = rig.Did<StartGeneration>();
  ASSERT_TRUE(start);
  EXPECT_TRUE(start->durable) << "what the node still writes is refused";
  EXPECT_EQ(rig.gang.generation(), 2U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
  EXPECT_FALSE(rig.Did<DrainInSlurm>());
  EXPECT_FALSE(rig.gang.IsSpare(1));
}

TEST_F(GangExiting, TheSlowestNodeKeepsItsPlaceWhenItIsFreeInTime) {
  ExitOn(1);
  rig.Stopped(1);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangExiting, ANodeThatHasNotSaidSoIsWaitedFor) {
  rig.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2, 3}) rig.Stopped(node);
  EXPECT_FALSE(rig.TimerSet(Timer::kExiting));
  WaitOver();
  EXPECT_EQ(rig.gang.state(), State::kStopping);
}

TEST_F(GangExiting, TheTimeBeginsWhenAllOthersHaveStopped) {
  rig.Exit(0, ExitCode(1));
  rig.Exiting(1);
  for (const uint32_t node : {0, 3}) rig.Stopped(node);
  EXPECT_FALSE(rig.TimerSet(Timer::kExiting));
  rig.Stopped(2);
  EXPECT_EQ(rig.TimerSet(Timer::kExiting), 5'000);
  WaitOver();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
}

TEST_F(GangExiting, TheTimeOfAStopBeforeIsOver) {
  ExitOn(1);
  rig.Stopped(1);
  rig.ExecuteAll();
  rig.Exit(0, ExitCode(1));
  EXPECT_EQ(rig.TimerSet(Timer::kExiting), -1);
}

TEST_F(GangExiting, TheNodeIsASpareWhenItsProcessesHaveGone) {
  Leave(1);
  rig.ExecuteAll();
  Free(1);
  EXPECT_THAT(rig.NoteOf("node_returned"),
              HasSubstr("node n1 may be used again: its processes of generation 1"));
  EXPECT_TRUE(rig.gang.IsSpare(1));
  rig.Silence(3);
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangExiting, TheNodeIsDrainedWhenItsProcessesAreStuck) {
  Leave(1);
  rig.ExecuteAll();
  rig.Feed(NodeStopped{1, 1, 20001, 2});
  ASSERT_TRUE(rig.Did<DrainInSlurm>());
  EXPECT_EQ(rig.Did<DrainInSlurm>()->node, 1U);
  EXPECT_TRUE(rig.Did<Persist>()) << "for a successor, who would take it for a spare";
  EXPECT_THAT(rig.NoteOf("unkillable"), HasSubstr("2 processes of generation 1 survive SIGKILL"));
  EXPECT_EQ(rig.NoteOf("node_returned"), "");
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangExiting, ANodeThatIsDrainedMeanwhileIsNoSpareAfterwards) {
  Leave(1);
  rig.ExecuteAll();
  rig.Feed(DrainNode{1, "fan"});
  Free(1);
  EXPECT_EQ(rig.NoteOf("node_returned"), "");
  EXPECT_EQ(rig.gang.nodes()[1].exiting, 0U);
  EXPECT_FALSE(rig.gang.IsSpare(1));
}

TEST_F(GangExiting, WithoutAnotherSpareTheGangWaits) {
  Leave(1);
  rig.ExecuteAll();
  Leave(2);
  EXPECT_EQ(rig.gang.state(), State::kStopping) << "n1 and n2 have processes left";
  EXPECT_EQ(rig.TimerSet(Timer::kExiting), 5'000) << "a node may become free";
  Free(1);
  WaitOver();
  EXPECT_EQ(rig.gang.generation(), 3U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 1));
}

TEST_F(GangExiting, AGangThatMayShrinkWaitsToo) {
  Rig small(Rig::WithSpares(3, 1, 0, 1));
  small.Run();
  small.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2}) small.Stopped(node);
  small.Exiting(1);
  small.Feed(TimerFired{Timer::kExiting});
  EXPECT_EQ(small.gang.state(), State::kStopping);
  small.Stopped(1);
  EXPECT_THAT(small.gang.active(), ElementsAre(0, 1, 2));
}

// The gang has shrunk already, and a role's lack of nodes is no other's.
TEST_F(GangExiting, EachRoleHasSparesOfItsOwn) {
  Settings settings = Rig::SettingsOf(6, 1);
  settings.roles = {Role{.name = "worker", .spares = 1},
                    Role{.name = "log", .kind = RoleKind::kSidecar, .min_nodes = 1}};
  settings.node_roles = {0, 0, 0, 0, 1, 1};
  Rig roles(settings);
  roles.Run();
  roles.Silence(5);
  for (const uint32_t node : {0, 2, 3, 4}) roles.Stopped(node);
  roles.Exiting(1);
  roles.Feed(TimerFired{Timer::kExiting});
  EXPECT_THAT(roles.gang.active(), ElementsAre(0, 3, 2, 4));
}

TEST_F(GangExiting, NoNodeIsDrainedIntoTheGap) {
  rig.Exit(0, ExitCode(1));
  rig.Feed(DrainNode{2, "fan"});
  for (const uint32_t node : {0, 2, 3}) rig.Stopped(node);
  rig.Exiting(1);
  WaitOver();
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.Stopped(1);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 3));
}

TEST_F(GangExiting, TheNodeIsLeftWhenADrainIsTakenBack) {
  rig.Exit(0, ExitCode(1));
  rig.Feed(DrainNode{2, "fan"});
  for (const uint32_t node : {0, 2, 3}) rig.Stopped(node);
  rig.Exiting(1);
  WaitOver();
  EXPECT_EQ(rig.TimerSet(Timer::kExiting), 5'000);
  rig.Feed(NodeReturned{2});
  WaitOver();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
}

TEST_F(GangExiting, AJobThatIsRequeuedWaitsForAllProcesses) {
  Rig near(Rig::WithSpares(4, 1, 1));
  near.Run();
  near.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  near.Feed(EndNear{.left_ms = 1'000});
  near.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2, 3}) near.Stopped(node);
  near.Exiting(1);
  near.Feed(TimerFired{Timer::kExiting});
  EXPECT_EQ(near.gang.state(), State::kStopping);
  // And so does the job whose batch host is dead.
  rig.Feed(JobFacts{.batch_node = 0, .can_requeue = true});
  rig.Silence(0);
  for (const uint32_t node : {2, 3}) rig.Stopped(node);
  rig.Exiting(1);
  WaitOver();
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.Stopped(1);
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
}

TEST_F(GangExiting, WhatIsSaidOfARunningGenerationStopsNothing) {
  rig.Exiting(1);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_EQ(rig.gang.nodes()[1].exiting, 0U);
  rig.Feed(NodeExiting{7, 1});
  rig.Feed(NodeExiting{1, 0});
}

TEST_F(GangExiting, ANodeThatComesBackIsAskedAgain) {
  Leave(1);
  rig.ExecuteAll();
  rig.Feed(NodeLeft{1});
  rig.Join(1, MemberState::kExited, 1);
  const auto stop = rig.Did<StopGeneration>();
  ASSERT_TRUE(stop);
  EXPECT_TRUE(stop->older);
  EXPECT_THAT(stop->nodes, ElementsAre(1));
  rig.Exiting(1);
  EXPECT_EQ(rig.gang.nodes()[1].exiting, 2U);
  rig.Stopped(1);
  EXPECT_TRUE(rig.gang.IsSpare(1));
}

TEST_F(GangExiting, InANewTermTheNodeIsAskedAgain) {
  Leave(1);
  rig.ExecuteAll();
  rig.actions = rig.gang.SayAgain();
  const auto stop = rig.Did<StopGeneration>();
  ASSERT_TRUE(stop);
  EXPECT_TRUE(stop->older);
  EXPECT_THAT(stop->nodes, ElementsAre(1));
}

TEST_F(GangExiting, AGangThatEndsWaitsForAllProcesses) {
  rig.Feed(JobFacts{.can_requeue = false});
  rig.Exit(0, ExitCode(1));
  rig.Feed(Terminating{.task = 0});
  for (const uint32_t node : {0, 2, 3}) rig.Stopped(node);
  rig.Exiting(1);
  WaitOver();
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.Stopped(1);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
}

TEST_F(GangExiting, NothingIsSaidOfTheNodesOfAGangThatHasEnded) {
  Settings settings = Rig::WithSpares(4, 1, 1);
  settings.restarts = 0;
  Rig last(settings);
  last.Run();
  last.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2, 3}) last.Stopped(node);
  last.Exiting(1);
  last.Feed(TimerFired{Timer::kExiting});
  ASSERT_EQ(last.gang.state(), State::kFinished);
  EXPECT_EQ(last.gang.nodes()[1].exiting, 0U);
}

TEST_F(GangExiting, NoPlannedStopCountsTheNodeAsFree) {
  Leave(1);
  rig.ExecuteAll();
  rig.Feed(DrainNode{2, "fan"});
  EXPECT_THAT(rig.NoteOf("drain"), HasSubstr("node n2 cannot be replaced"));
  rig.Feed(CheckpointCommitted{7});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

// There was a spare when the drain was ordered.
TEST_F(GangExiting, ADrainThatIsDueCountsTheNodeAsBusy) {
  Leave(1);
  rig.ExecuteAll();
  Free(1);
  rig.Feed(DrainNode{2, "fan"});
  rig.Feed(NodeLeft{1});
  rig.Join(1, MemberState::kExited, 1);
  rig.Exiting(1);
  rig.Feed(CheckpointCommitted{7});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_THAT(rig.NoteOf("drain"), HasSubstr("node n2 cannot be replaced"));
}

Settings ThatGrows() {
  Settings settings = Rig::WithSpares(3, 1, 0, 1);
  settings.grow = true;
  return settings;
}

class GangGrowing : public GangExiting {
 protected:
  GangGrowing() : GangExiting(ThatGrows()) {}
};

TEST_F(GangGrowing, ANodeThatHasHealedIsTakenBackWhenItIsFree) {
  rig.Silence(1);
  for (const uint32_t node : {0, 2}) rig.Stopped(node);
  rig.ExecuteAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2));
  rig.Join(1, MemberState::kExited, 1);
  rig.Exiting(1);
  rig.Feed(NodeReturned{1});
  rig.Feed(CheckpointCommitted{7});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Stopped(1);
  EXPECT_THAT(rig.NoteOf("growing"), HasSubstr("n1 is added"));
  rig.Feed(CheckpointCommitted{8});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
}

TEST_F(GangGrowing, ANodeThatIsBusyAgainIsNotTakenBackAtTheCheckpoint) {
  rig.Silence(1);
  for (const uint32_t node : {0, 2}) rig.Stopped(node);
  rig.ExecuteAll();
  rig.Join(1);
  EXPECT_THAT(rig.NoteOf("growing"), HasSubstr("n1 is added"));
  rig.Feed(NodeLeft{1});
  rig.Join(1, MemberState::kExited, 1);
  rig.Feed(CheckpointCommitted{7});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

// The record of the generation without the node is not in the store, as when Ceph is away.
TEST_F(GangExiting, TheNodeKeepsItsPlaceIfNobodyHasBeenToldOfAGenerationWithoutIt) {
  Leave(1);
  Free(1, true);
  EXPECT_EQ(rig.gang.generation(), 3U);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
  const auto stop = rig.Did<StopGeneration>();
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->generation, 2U);
  EXPECT_TRUE(stop->nodes.empty());
  const auto start = rig.Did<StartGeneration>();
  ASSERT_TRUE(start);
  EXPECT_FALSE(start->durable) << "it runs on the nodes that the record has";
  EXPECT_THAT(start->nodes, ElementsAre(0, 1, 2, 3));
  rig.ExecuteAll();
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_TRUE(rig.gang.IsSpare(3));
  EXPECT_EQ(rig.gang.user_faults(), 1U);
}

TEST_F(GangExiting, TheNodeIsASpareIfTheGenerationWithoutItHasBeenStarted) {
  Leave(1);
  Free(1);
  EXPECT_EQ(rig.gang.generation(), 2U);
  EXPECT_TRUE(rig.gang.IsSpare(1));
}

TEST_F(GangExiting, ANodeThatIsNotTheOnlyOneLeftIsNoReasonToPlaceAgain) {
  Rig two(Rig::WithSpares(5, 1, 2));
  two.Run();
  two.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 3, 4}) two.Stopped(node);
  for (const uint32_t node : {1, 2}) two.Exiting(node);
  two.Feed(TimerFired{Timer::kExiting});
  ASSERT_THAT(two.gang.active(), ElementsAre(0, 3, 4));
  two.Feed(NodeStopped{.node = 1, .generation = 1, .unsent = true});
  EXPECT_EQ(two.gang.generation(), 2U);
  two.Feed(NodeStopped{.node = 2, .generation = 1, .unsent = true});
  EXPECT_THAT(two.gang.active(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(two.Did<StartGeneration>()->durable);
}

TEST_F(GangExiting, ANodeThatHasComeBackInBetweenIsNotTakenForFree) {
  Rig two(Rig::WithSpares(5, 1, 2));
  two.Run();
  two.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 3, 4}) two.Stopped(node);
  for (const uint32_t node : {1, 2}) two.Exiting(node);
  two.Feed(TimerFired{Timer::kExiting});
  ASSERT_THAT(two.gang.active(), ElementsAre(0, 3, 4));
  two.Feed(NodeLeft{2});
  two.Join(2, MemberState::kExited, 1);
  two.Feed(NodeStopped{.node = 1, .generation = 1, .unsent = true});
  EXPECT_EQ(two.gang.generation(), 2U);
  EXPECT_THAT(two.gang.active(), ElementsAre(0, 3, 4));
}

// n2 is lost: the record must say so before a generation starts without n2.
TEST_F(GangExiting, ANodeThatIsFreeMakesNoRecordNeedless) {
  Rig two(Rig::WithSpares(5, 1, 2));
  two.Run();
  two.Silence(2);
  for (const uint32_t node : {0, 3, 4}) two.Stopped(node);
  two.Exiting(1);
  two.Feed(TimerFired{Timer::kExiting});
  ASSERT_THAT(two.gang.active(), ElementsAre(0, 3, 4));
  two.Feed(NodeStopped{.node = 1, .generation = 1, .unsent = true});
  EXPECT_EQ(two.gang.generation(), 2U);
  EXPECT_TRUE(two.gang.IsSpare(1));
}

// n1 was left, and is free before anybody was told of the generation without it: the next generation starts at once, and its record is
// not in the store when another coordinator takes over.
class GangPlacedAgain : public GangExiting {
 protected:
  GangPlacedAgain() {
    Leave(1);
    memory = rig.gang.Remember();
    Free(1, true);
    rig.ExecuteAll();
  }
  Rig Successor() const { return Rig(Rig::WithSpares(4, 1, 1), memory); }
  // Its nodes run `generation`, and the successor finds that they do.
  void ExpectGenerationOfRecord(uint64_t generation) const {
    Rig next = Successor();
    next.Join(1, MemberState::kStopped, 1);
    for (const uint32_t node : {0, 2, 3}) next.Join(node, MemberState::kRunning, generation);
    EXPECT_EQ(next.gang.state(), State::kRunning);
    EXPECT_THAT(next.gang.active(), ElementsAre(0, 3, 2));
  }
  Memory memory;  // the second generation's
};

TEST_F(GangPlacedAgain, TheNextCoordinatorFindsItsNodes) {
  ASSERT_THAT(memory.active, ElementsAre(0, 3, 2));
  ASSERT_THAT(memory.before, ElementsAre(0, 1, 2));
  ASSERT_EQ(rig.gang.generation(), 3U);
  EXPECT_TRUE(rig.gang.Remember().before.empty());
  Rig next = Successor();
  next.Join(3, MemberState::kStopped, 1);
  for (const uint32_t node : {0, 1, 2}) next.Join(node, MemberState::kRunning, 3);
  EXPECT_EQ(next.gang.state(), State::kRunning);
  EXPECT_EQ(next.gang.generation(), 3U);
  EXPECT_THAT(next.gang.active(), ElementsAre(0, 1, 2));
}

TEST_F(GangPlacedAgain, ASecondTakeoverBeforeAllNodesAreHereFindsItsNodesToo) {
  Rig next = Successor();
  next.Join(0, MemberState::kRunning, 3);
  ASSERT_EQ(next.gang.state(), State::kRecovering);
  Rig third(Rig::WithSpares(4, 1, 1), next.gang.Remember());
  third.Join(3, MemberState::kStopped, 1);
  for (const uint32_t node : {0, 1, 2}) third.Join(node, MemberState::kRunning, 3);
  EXPECT_EQ(third.gang.state(), State::kRunning);
  EXPECT_THAT(third.gang.active(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(third.gang.Remember().before.empty());
}

TEST_F(GangPlacedAgain, OneOfItsNodesIsMissed) {
  Rig next = Successor();
  next.Join(3, MemberState::kStopped, 1);
  for (const uint32_t node : {0, 2}) next.Join(node, MemberState::kRunning, 3);
  next.Silence(1);
  EXPECT_EQ(next.gang.state(), State::kStopping) << "the others wait for it";
  next.StopAll();
  EXPECT_THAT(next.gang.active(), ElementsAre(0, 3, 2));
}

TEST_F(GangPlacedAgain, TheGenerationOfTheRecordIsItIfThatWasBegunAndRestarted) {
  ExpectGenerationOfRecord(3);
}

TEST_F(GangPlacedAgain, TheGenerationOfTheRecordIsItIfNothingNewerRuns) {
  ExpectGenerationOfRecord(2);
}

// A checkpoint is being marked bad: nobody is told before.
TEST_F(GangExiting, AGenerationOnTheSameNodesIsNotPlacedAgain) {
  Leave(1);
  rig.ExecuteAll();
  rig.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2, 3}) rig.Stopped(node);
  WaitOver();
  ASSERT_EQ(rig.gang.generation(), 3U);
  Free(1, true);
  EXPECT_EQ(rig.gang.generation(), 3U);
}

TEST_F(GangExiting, TheLastWordsOfAGenerationBeforeAreNotNotedAgain) {
  Leave(1);
  rig.ExecuteAll();
  rig.Exit(0, ExitCode(1));
  for (const uint32_t node : {0, 2}) rig.Stopped(node);
  rig.Feed(NodeStopped{.node = 1, .generation = 2, .last_words_ms = 5'000});
  rig.Stopped(3);
  EXPECT_EQ(rig.gang.generation(), 3U);
  EXPECT_EQ(rig.NoteOf("last_words"), "");
}

}  // namespace
}  // namespace muster::gang
