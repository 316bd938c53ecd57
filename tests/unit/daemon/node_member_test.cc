#include "daemon/agent/node_member.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <vector>

namespace muster {
namespace {

using State = NodeMember::State;

NodeMember Running(uint64_t generation) {
  NodeMember member;
  member.Start(generation);
  return member;
}

Orders Started(uint64_t generation) {
  Orders orders;
  orders.Adopt(1);
  orders.Start(generation, {});
  return orders;
}

TEST(NodeMember, AGenerationIsStartedOnceAndKnowsNothingOfTheOneBefore) {
  NodeMember member = Running(3);
  member.Executed(3, 7);
  member.Stop(false);
  member.Stopped(3, 2, 40, Started(3));
  ASSERT_TRUE(member.end);
  EXPECT_FALSE(member.Start(3));
  EXPECT_FALSE(member.Start(2));
  EXPECT_TRUE(member.end) << "nothing has been started";
  EXPECT_TRUE(member.Start(4));
  EXPECT_EQ(member.state, State::kRunning);
  EXPECT_EQ(member.generation, 4U);
  EXPECT_FALSE(member.end);
  EXPECT_EQ(member.executed_ns, 0);
  EXPECT_EQ(member.unkillable, 0U);
  EXPECT_FALSE(member.stop.ordered);
  EXPECT_EQ(member.stop.last_words_ms, 0U);
}

TEST(NodeMember, WhatHasAProgramIsStopped) {
  NodeMember member;
  EXPECT_FALSE(member.Stop(false)) << "it waits";
  member.Start(1);
  EXPECT_TRUE(member.Stop(true));
  EXPECT_FALSE(member.Stop(true)) << "once";
  EXPECT_TRUE(member.Stop(false)) << "its last words end";
  member.Start(2);
  member.Exited(2, {.status = 0});
  EXPECT_TRUE(member.Stop(false)) << "descendants of its program may be there";
  member.Start(3);
  member.Stopped(3, 0, 0, {});
  EXPECT_FALSE(member.Stop(false)) << "it is stopped";
}

TEST(NodeMember, WhatIsSaidOfAnotherGenerationIsDropped) {
  NodeMember member = Running(3);
  EXPECT_FALSE(member.Executed(2, 7));
  EXPECT_FALSE(member.Exited(2, {}));
  EXPECT_FALSE(member.Exiting(2));
  EXPECT_FALSE(member.Stopped(2, 1, 1, Started(3)));
  EXPECT_EQ(member.executed_ns, 0);
  EXPECT_EQ(member.state, State::kRunning);
  EXPECT_FALSE(member.end);
  EXPECT_FALSE(member.stop.exiting);
  EXPECT_EQ(member.unkillable, 0U);
  EXPECT_TRUE(member.Executed(3, 7));
  EXPECT_EQ(member.executed_ns, 7);
  EXPECT_TRUE(member.Exiting(3));
  EXPECT_TRUE(member.stop.exiting);
}

TEST(NodeMember, AProgramThatExitsHasEndedAsItsSupervisorSays) {
  NodeMember member = Running(3);
  EXPECT_TRUE(member.Exited(3, {.status = 256, .pid = 5}));
  EXPECT_EQ(member.state, State::kExited);
  ASSERT_TRUE(member.end);
  EXPECT_EQ(member.end->status, 256);
  EXPECT_FALSE(member.end->supervisor_lost);
}

TEST(NodeMember, AnExitThatIsToldLateDoesNotUndoAStop) {
  NodeMember member = Running(3);
  member.Stopped(3, 0, 0, {});
  member.Exited(3, {.status = 256});
  EXPECT_EQ(member.state, State::kStopped);
  EXPECT_EQ(member.end->status, 256) << "its circumstances are known better now";
}

TEST(NodeMember, AStopThatTheCoordinatorHasOrderedIsNoNews) {
  Orders orders = Started(3);
  orders.Stop(3);
  NodeMember member = Running(3);
  EXPECT_FALSE(member.Stopped(3, 2, 40, orders));
  EXPECT_EQ(member.state, State::kStopped);
  EXPECT_EQ(member.unkillable, 2U);
  EXPECT_EQ(member.stop.last_words_ms, 40U);
  EXPECT_FALSE(member.end);
}

TEST(NodeMember, AStopThatNobodyHasOrderedIsAnEndByTheKillSignal) {
  NodeMember member = Running(3);
  EXPECT_TRUE(member.Stopped(3, 0, 0, Started(3)));
  ASSERT_TRUE(member.end);
  EXPECT_EQ(member.end->status, SIGKILL);
  NodeMember told = Running(3);
  told.Exited(3, {.status = 256});
  EXPECT_FALSE(told.Stopped(3, 0, 0, Started(3))) << "its end has been told";
  EXPECT_EQ(told.end->status, 256);
}

TEST(NodeMember, ASupervisorThatIsBackSaysWhereItIs) {
  NodeMember running;
  running.Returned(State::kRunning, 3, {.status = 0});
  EXPECT_EQ(running.state, State::kRunning);
  EXPECT_EQ(running.generation, 3U);
  EXPECT_FALSE(running.end);
  for (const State state : {State::kExited, State::kStopped}) {
    NodeMember ended;
    ended.Returned(state, 3, {.status = 256, .pid = 5});
    EXPECT_EQ(ended.state, state);
    ASSERT_TRUE(ended.end);
    EXPECT_EQ(ended.end->status, 256);
  }
}

TEST(NodeMember, WhatWasKnownOfAnEndBeforeItsSupervisorCameBackStays) {
  NodeMember member = Running(3);
  member.Exited(3, {.status = 256, .program = "a.out"});
  member.Returned(State::kExited, 3, {.status = 256});
  EXPECT_EQ(member.end->program, "a.out");
}

TEST(NodeMember, OfADeadSupervisorWhatRanIsToBeKilled) {
  NodeMember member = Running(3);
  EXPECT_TRUE(member.SupervisorDied(Started(3)));
  EXPECT_EQ(member.state, State::kExited) << "until all that it has left is gone";
  ASSERT_TRUE(member.end);
  EXPECT_TRUE(member.end->supervisor_lost);
  EXPECT_EQ(member.end->status, SIGKILL);
  member.LeftKilled(2);
  EXPECT_EQ(member.state, State::kStopped);
  EXPECT_EQ(member.unkillable, 2U);
}

TEST(NodeMember, OfADeadSupervisorAnExitedProgramsDescendantsAreToBeKilled) {
  NodeMember member = Running(3);
  member.Exited(3, {.status = 256});
  EXPECT_TRUE(member.SupervisorDied(Started(3)));
  EXPECT_EQ(member.end->status, 256);
  EXPECT_TRUE(member.end->supervisor_lost);
}

TEST(NodeMember, OfADeadSupervisorNothingIsLeftThatWaitedOrHadStopped) {
  NodeMember waiting;
  EXPECT_FALSE(waiting.SupervisorDied({}));
  EXPECT_EQ(waiting.state, State::kStopped);
  EXPECT_TRUE(waiting.end->supervisor_lost);
  NodeMember stopped = Running(3);
  stopped.Stopped(3, 0, 0, {});
  EXPECT_FALSE(stopped.SupervisorDied(Started(3)));
}

TEST(NodeMember, OfASupervisorThatDiedWhileMusterdWasAwayAProgramMayBeLeft) {
  NodeMember member;
  EXPECT_TRUE(member.SupervisorDied(Started(3)));
  EXPECT_EQ(member.state, State::kExited);
  EXPECT_EQ(member.end->status, SIGKILL) << "that is no success";
}

TEST(NodeMember, AFencedMemberHasEndedBeforeItsSupervisorSaysSo) {
  NodeMember member = Running(3);
  EXPECT_TRUE(member.Fence(9));
  EXPECT_EQ(member.state, State::kExited);
  ASSERT_TRUE(member.end);
  EXPECT_EQ(member.end->status, SIGKILL);
  EXPECT_EQ(member.end->time_ns, 9);
  EXPECT_FALSE(member.end->program.empty()) << "it says why";
  EXPECT_FALSE(member.Fence(10)) << "once";
  EXPECT_EQ(member.end->time_ns, 9);
  member.Returned(State::kRunning, 3, {});
  EXPECT_FALSE(member.Fence(11)) << "its supervisor is back, and has not killed it yet";
  NodeMember waiting;
  EXPECT_FALSE(waiting.Fence(9));
  EXPECT_FALSE(waiting.end);
}

TEST(NodeMembers, TheNewestGenerationThatMayHaveProcessesIsKnown) {
  std::map<uint32_t, NodeMember> members;
  EXPECT_EQ(NewestWithProgram(members), 0U);
  members[0] = Running(2);
  members[1] = Running(4);
  members[2] = Running(3);
  members[3] = Running(5);
  members[3].Stopped(5, 0, 0, {});
  members[4];
  EXPECT_EQ(NewestWithProgram(members), 4U);
  members[1].Exited(4, {});
  EXPECT_EQ(NewestWithProgram(members), 4U);
}

TEST(NodeMembers, AllAreToldAsExecutedInOneMessageOnce) {
  Orders orders = Started(3);
  std::map<uint32_t, NodeMember> members{{4, Running(3)}, {5, Running(3)}, {6, Running(3)}};
  members[4].Executed(3, 8);
  members[6].Executed(3, 7);
  EXPECT_FALSE(SayExecuted(members, 3, &orders)) << "a program has not been exec'd yet";
  members[5].Exited(3, {.status = 256});
  const auto said = SayExecuted(members, 3, &orders);
  ASSERT_TRUE(said) << "a program that has ended before is not waited for";
  EXPECT_EQ(said->tasks, (std::vector<uint32_t>{4, 6}));
  EXPECT_EQ(said->time_ns, 8) << "the last one's";
  EXPECT_FALSE(SayExecuted(members, 3, &orders));
}

TEST(NodeMembers, NoneIsToldAsExecutedBeforeAllAreOfTheGeneration) {
  Orders orders = Started(3);
  std::map<uint32_t, NodeMember> members{{4, Running(3)}, {5, Running(2)}};
  members[4].Executed(3, 8);
  members[5].Executed(2, 1);
  EXPECT_FALSE(SayExecuted(members, 3, &orders));
}

TEST(NodeMembers, TheNodeHasStoppedWhenAllHaveOnceAnOrder) {
  Orders orders = Started(3);
  std::map<uint32_t, NodeMember> members{{4, Running(3)}, {5, Running(3)}, {6, {}}};
  members[4].Stopped(3, 1, 30, orders);
  members[5].Stopped(3, 2, 20, orders);
  EXPECT_FALSE(SayStopped(members, 3, &orders)) << "nobody has asked";
  orders.Stop(3);
  const auto said = SayStopped(members, 3, &orders);
  ASSERT_TRUE(said);
  EXPECT_FALSE(said->exiting);
  EXPECT_EQ(said->unkillable, 3U);
  EXPECT_EQ(said->last_words_ms, 30U);
  EXPECT_EQ(orders.said_stopped(), 3U);
  EXPECT_FALSE(SayStopped(members, 3, &orders));
}

TEST(NodeMembers, TheNodeHasNotStoppedWhileAMemberRuns) {
  Orders orders = Started(3);
  orders.Stop(3);
  std::map<uint32_t, NodeMember> members{{4, Running(3)}, {5, Running(3)}};
  members[4].Stop(false);
  members[5].Stop(false);
  EXPECT_FALSE(SayStopped(members, 2, &orders));
  members[4].Stopped(3, 0, 0, orders);
  EXPECT_FALSE(SayStopped(members, 2, &orders));
  members[5].Exited(3, {.status = 0});
  EXPECT_FALSE(SayStopped(members, 2, &orders)) << "descendants of its program may be there";
}

TEST(NodeMembers, TheNodeHasNotStoppedWhileAMemberHasANewerGeneration) {
  Orders orders = Started(3);
  orders.Stop(2);
  std::map<uint32_t, NodeMember> members{{4, Running(2)}, {5, Running(3)}};
  members[4].Stopped(2, 0, 0, orders);
  members[5].Stopped(3, 0, 0, orders);
  EXPECT_FALSE(SayStopped(members, 2, &orders));
}

TEST(NodeMembers, TheNodeHasNotStoppedWhileATaskIsNotHere) {
  Orders orders = Started(3);
  orders.Stop(3);
  const std::map<uint32_t, NodeMember> members{{4, {}}};
  EXPECT_FALSE(SayStopped(members, 2, &orders));
  EXPECT_TRUE(SayStopped(members, 1, &orders));
}

TEST(NodeMembers, ThatTheRestOnlyExitsIsSaidOnceBefore) {
  Orders orders = Started(3);
  orders.Stop(3);
  std::map<uint32_t, NodeMember> members{{4, Running(3)}, {5, Running(3)}};
  members[4].Exiting(3);
  EXPECT_FALSE(SayStopped(members, 2, &orders)) << "the other one may run";
  members[5].Stopped(3, 0, 0, orders);
  const auto exiting = SayStopped(members, 2, &orders);
  ASSERT_TRUE(exiting);
  EXPECT_TRUE(exiting->exiting);
  EXPECT_FALSE(orders.said_stopped());
  EXPECT_FALSE(SayStopped(members, 2, &orders));
  members[4].Stopped(3, 1, 0, orders);
  const auto stopped = SayStopped(members, 2, &orders);
  ASSERT_TRUE(stopped);
  EXPECT_FALSE(stopped->exiting);
  EXPECT_EQ(stopped->unkillable, 1U);
}

}  // namespace
}  // namespace muster
