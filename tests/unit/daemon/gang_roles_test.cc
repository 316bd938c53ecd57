// Several roles in one gang: who decides its end, who starts after whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Node i has one task, and role i.
Settings OneNodeEach(const std::vector<Role>& roles) {
  Settings settings = Rig::SettingsOf(static_cast<uint32_t>(roles.size()), 1);
  settings.roles = roles;
  settings.node_roles.clear();
  for (uint32_t i = 0; i < roles.size(); ++i) settings.node_roles.push_back(i);
  return settings;
}

class GangRoles : public ::testing::Test {
 protected:
  static Rig With(RoleKind second) {
    return Rig(OneNodeEach({Role{.name = "worker"}, Role{.name = "other", .kind = second}}));
  }
};

TEST_F(GangRoles, AServiceIsStoppedWhenAllTrackedMembersHaveExitedWithZero) {
  Rig rig = With(RoleKind::kService);
  rig.Run();
  rig.Exit(0, 0);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  ASSERT_TRUE(rig.Did<StopGeneration>());
  EXPECT_TRUE(rig.Did<Persist>()) << "a coordinator that takes over must not start it all again";
  rig.Exit(1, SIGKILL);
  rig.Stopped(0);
  rig.Stopped(1);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_TRUE(rig.gang.succeeded());
  EXPECT_EQ(rig.Did<FinishGang>()->code, 0);
}

TEST_F(GangRoles, ASuccessStaysOneWhenAServiceCannotBeKilledOrItsNodeGoesAway) {
  for (const bool leaves : {false, true}) {
    Rig rig = With(RoleKind::kService);
    rig.Run();
    rig.Exit(0, 0);
    rig.Stopped(0);
    if (leaves) {
      rig.Feed(NodeLeft{1});
    } else {
      rig.Stopped(1, 1);
    }
    EXPECT_EQ(rig.gang.state(), State::kFinished);
    EXPECT_TRUE(rig.gang.succeeded());
  }
}

TEST_F(GangRoles, ACoordinatorThatTakesOverASuccessEndsItAsOne) {
  Settings settings = OneNodeEach({Role{.name = "worker"}, Role{.name = "ps", .kind = RoleKind::kService}});
  Rig before(settings);
  before.Run();
  before.Exit(0, 0);
  Rig rig(settings, before.gang.Remember());
  NodeJoined worker = rig.Node(0, MemberState::kStopped, 1);
  worker.members[0].exit = gang::Exit{.status = 0};
  rig.Feed(worker);
  rig.Join(1, MemberState::kRunning, 1);
  EXPECT_TRUE(rig.Did<StopGeneration>());
  rig.StopAll();
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRoles, AServicesFailureIsAFault) {
  Rig rig = With(RoleKind::kService);
  rig.Run();
  rig.Exit(1, ExitCode(1));
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 2U);
}

TEST_F(GangRoles, AServiceThatEndsWellIsNotWaitedFor) {
  Rig rig = With(RoleKind::kService);
  rig.Run();
  rig.Exit(1, 0);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(0, 0);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRoles, UntrackedMembersAreNotWaitedForButTheirFailureIsAFault) {
  Rig rig = With(RoleKind::kUntracked);
  rig.Run();
  rig.Exit(1, ExitCode(3));
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  Rig good = With(RoleKind::kUntracked);
  good.Run();
  good.Exit(0, 0);
  good.StopAll();
  EXPECT_TRUE(good.gang.succeeded());
}

TEST_F(GangRoles, ASidecarsEndChangesNothing) {
  Rig rig = With(RoleKind::kSidecar);
  rig.Run();
  rig.Exit(1, SIGSEGV);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  EXPECT_THAT(rig.NoteOf("sidecar"), HasSubstr("changes nothing"));
  rig.Exit(0, 0);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRoles, ASidecarsExitCodeIsNotTheGangs) {
  Rig rig = With(RoleKind::kSidecar);
  rig.Run();
  rig.Exit(1, SIGSEGV);
  rig.Exit(0, 0);
  EXPECT_TRUE(rig.gang.succeeded());
  EXPECT_EQ(rig.Did<FinishGang>()->code, 0);
  Rig good = With(RoleKind::kSidecar);
  good.Run();
  good.Exit(1, 0);
  good.Exit(0, 0);
  EXPECT_FALSE(good.Did<FinishGang>()->code) << "each exits as its program did";
}

TEST_F(GangRoles, ASidecarThatEndedBeforeTheOthersRunHoldsNobodyUp) {
  Rig rig = With(RoleKind::kSidecar);
  rig.JoinAll();
  rig.Exit(1, SIGSEGV);
  rig.Feed(MemberExecuted{0, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangRoles, ASidecarThatHasFailedIsNoFaultForACoordinatorThatTakesOver) {
  Settings settings = OneNodeEach({Role{.name = "worker"}, Role{.name = "log", .kind = RoleKind::kSidecar}});
  Rig rig(settings, {.generation = 4, .running = true, .active = {0, 1}});
  rig.Join(0, MemberState::kRunning, 4);
  NodeJoined sidecar = rig.Node(1, MemberState::kExited, 4);
  sidecar.members[0].exit = gang::Exit{.status = SIGSEGV};
  rig.Feed(sidecar);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangRoles, TheChiefsExitDecides) {
  Rig rig = With(RoleKind::kChief);
  rig.Run();
  rig.Exit(1, 0);
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.StopAll();
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRoles, AChiefThatFailsIsAFault) {
  Rig rig = With(RoleKind::kChief);
  rig.Run();
  rig.Exit(1, ExitCode(1));
  rig.StopAll();
  EXPECT_EQ(rig.gang.generation(), 2U);
}

TEST_F(GangRoles, AGangOfServicesOnlyEndsWithTheLast) {
  Rig rig(OneNodeEach(
      {Role{.name = "a", .kind = RoleKind::kService}, Role{.name = "b", .kind = RoleKind::kService}}));
  rig.Run();
  rig.Exit(0, 0);
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(1, 0);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangRoles, ASpareReplacesNodesOfItsOwnRoleOnly) {
  Settings settings = Rig::SettingsOf(4, 1);
  settings.roles = {Role{.name = "ps", .kind = RoleKind::kService}, Role{.name = "worker", .spares = 1}};
  settings.node_roles = {0, 1, 1, 1};
  Rig rig(settings);
  rig.Run();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
  Rig other(settings);
  other.Run();
  rig.Silence(1);
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 3, 2));
  other.Silence(0);
  other.StopAll();
  EXPECT_EQ(other.gang.state(), State::kRequeueing);
  EXPECT_THAT(other.Did<ReportToJob>()->text, HasSubstr("of role ps"));
}

// ---- start-after

class GangAfter : public ::testing::Test {
 protected:
  static Settings Two(bool after_done) {
    return OneNodeEach({Role{.name = "ps", .kind = RoleKind::kService},
                        Role{.name = "worker", .after = 0, .after_done = after_done}});
  }
};

TEST_F(GangAfter, ARoleStartsWhenTheOneBeforeItRuns) {
  Rig rig(Two(false));
  rig.JoinAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_FALSE(rig.gang.nodes()[1].started);
  rig.Feed(MemberExecuted{0, 1, 0});
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(1));
  EXPECT_EQ(rig.gang.state(), State::kStarting);
  rig.Feed(MemberExecuted{1, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
}

TEST_F(GangAfter, OnlyTheFirstRoleIsToldToStartAtFirst) {
  Rig rig(Two(false));
  rig.JoinAll();
  EXPECT_THAT(rig.Did<StartGeneration>()->nodes, ElementsAre(0));
}

TEST_F(GangAfter, ARoleThatWaitsForTheEndStartsWhenTheOneBeforeHasEndedWell) {
  Settings settings = Two(true);
  settings.roles[0].kind = RoleKind::kTracked;
  Rig rig(settings);
  rig.JoinAll();
  rig.Feed(MemberExecuted{0, 1, 0});
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Exit(0, 0);
  ASSERT_TRUE(rig.Did<StartGeneration>());
  rig.Feed(MemberExecuted{1, 1, 0});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Exit(1, 0);
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangAfter, AnExecThatIsHeardOnlyWhenTheNodeIsBackStartsTheNextRole) {
  Rig rig(Two(false));
  rig.JoinAll();
  rig.Feed(NodeLeft{0});
  rig.Join(0, MemberState::kRunning, 1);
  bool started = false;
  for (const auto& start : rig.All<StartGeneration>()) started |= start.nodes == std::vector<uint32_t>{1};
  EXPECT_TRUE(started);
}

TEST_F(GangAfter, AFaultBeforeTheSecondRoleStartedWaitsOnlyForTheFirst) {
  Rig rig(Two(false));
  rig.JoinAll();
  rig.Exit(0, ExitCode(1));
  rig.Stopped(0);
  EXPECT_EQ(rig.gang.generation(), 2U);
}

TEST_F(GangAfter, SigtermBeforeTheSecondRoleStartedStartsItNoMore) {
  Rig rig(Two(false));
  rig.JoinAll();
  rig.Feed(Terminating{0, SIGTERM});
  rig.Feed(MemberExecuted{0, 1, 0});
  EXPECT_FALSE(rig.Did<StartGeneration>());
  rig.Exit(0, 0);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  EXPECT_FALSE(rig.gang.succeeded()) << "half of it never ran";
}

TEST_F(GangAfter, AChiefThatEndsBeforeTheLastRoleStartedEndsTheGang) {
  Settings settings = OneNodeEach({Role{.name = "chief", .kind = RoleKind::kChief}, Role{.name = "worker"},
                                   Role{.name = "evaluator", .after = 1, .after_done = true}});
  Rig rig(settings);
  rig.JoinAll();
  rig.Feed(MemberExecuted{0, 1, 0});
  rig.Feed(MemberExecuted{1, 1, 0});
  rig.Exit(0, 0);
  rig.StopAll();
  EXPECT_TRUE(rig.gang.succeeded());
}

TEST_F(GangAfter, ACoordinatorThatTakesOverLetsTheFirstRoleRunAndStartsTheSecondInItsTurn) {
  Settings settings = Two(true);
  settings.roles[0].kind = RoleKind::kTracked;
  Rig rig(settings, {.generation = 3, .running = true, .active = {0, 1}});
  rig.Join(0, MemberState::kRunning, 3);
  rig.Join(1, MemberState::kStopped, 2);
  // A member that has stopped an older generation is not one that has not been told of this one.
  EXPECT_EQ(rig.gang.state(), State::kStopping);

  Rig waiting(settings, {.generation = 3, .running = true, .active = {0, 1}});
  waiting.Join(0, MemberState::kRunning, 3);
  waiting.Join(1, MemberState::kWaiting, 0);
  EXPECT_EQ(waiting.gang.state(), State::kStarting);
  EXPECT_FALSE(waiting.Did<StopGeneration>());
  ASSERT_TRUE(waiting.Did<StartGeneration>());
  EXPECT_THAT(waiting.Did<StartGeneration>()->nodes, ElementsAre(0)) << "node 1 would begin its part";
  waiting.Exit(0, 0);
  ASSERT_TRUE(waiting.Did<StartGeneration>());
  EXPECT_THAT(waiting.Did<StartGeneration>()->nodes, ElementsAre(1));
}

TEST_F(GangAfter, ACoordinatorThatTakesOverAfterSigtermStartsTheSecondRoleNoMore) {
  Rig rig(Two(false), {.generation = 3, .running = true, .active = {0, 1}, .terminating = true});
  NodeJoined first = rig.Node(0, MemberState::kExited, 3);
  first.members[0].exit = gang::Exit{.status = SIGTERM};
  rig.Feed(first);
  rig.Join(1);
  EXPECT_EQ(rig.gang.state(), State::kFinished);
  for (const auto& start : rig.All<StartGeneration>()) EXPECT_THAT(start.nodes, ElementsAre(0));
}

}  // namespace
}  // namespace muster::gang
