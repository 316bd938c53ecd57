// --gang=order=topology: ranks follow the switches, and survivors keep theirs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_seed.h"
#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A node for each letter, below that leaf; all leaves are below one spine.
Settings Below(const std::string& leaves, uint32_t tasks_per_node = 1, uint32_t spares = 0,
               uint32_t min = 0) {
  Settings settings = Rig::WithSpares(static_cast<uint32_t>(leaves.size()), tasks_per_node, spares, min);
  settings.order_by_topology = true;
  for (const char leaf : leaves) settings.node_switches.push_back({"spine", std::string(1, leaf)});
  return settings;
}

void Lose(Rig& rig, uint32_t node) {
  rig.Silence(node);
  rig.StopAll();
}

TEST(GangOrder, RanksAreTogetherBelowEachSwitch) {
  Rig rig(Below("abab", 2));
  rig.JoinAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(rig.gang.members()[4].rank, 2U) << "the first task of n2";
  EXPECT_EQ(rig.gang.members()[5].rank, 3U);
  EXPECT_EQ(rig.gang.members()[2].rank, 4U) << "the first task of n1";
  EXPECT_EQ(
      rig.NoteOf("order"),
      "the ranks follow Slurm's topology: n0, n2, n1, n3; a ring over them crosses 2 levels of switches, "
      "4 in Slurm's order, 2 at best");
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable) << "a successor must know the order";
}

TEST(GangOrder, WithoutTheKeyTheTopologyChangesNothing) {
  Settings settings = Below("abab");
  settings.order_by_topology = false;
  Rig rig(settings);
  rig.JoinAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(rig.NoteOf("order"), "");
}

TEST(GangOrder, WithoutATopologySlurmsOrderStaysAndOneNoteSaysSo) {
  Settings settings = Below("abab", 1, 1);
  settings.node_switches.clear();
  Rig rig(settings);
  rig.JoinAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2));
  EXPECT_EQ(rig.NoteOf("order"), "the ranks are in Slurm's order: Slurm's topology has none of its nodes");
  rig.ExecuteAll();
  Lose(rig, 0);
  EXPECT_THAT(rig.gang.active(), ElementsAre(3, 1, 2));
  EXPECT_EQ(rig.NoteOf("order"), "") << "it has been said";
}

TEST(GangOrder, ATopologyThatIsNoTreeIsNamed) {
  Settings settings = Below("abab");
  settings.node_switches[2] = {"a"};
  settings.node_names = {"n0", "n1", "n2", "n3"};
  Rig rig(settings);
  rig.JoinAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(rig.NoteOf("order"),
              HasSubstr("Slurm's order: the levels of switches above n0 are 2, and above n2"));
}

TEST(GangOrder, TheNearestSpareTakesTheLostNodesPlace) {
  Rig rig(Below("ababca", 1, 2));
  rig.Run();
  ASSERT_THAT(rig.gang.active(), ElementsAre(0, 2, 1, 3));
  Lose(rig, 2);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 5, 1, 3))
      << "n5 is below n0's switch, n4 below none of theirs";
  EXPECT_THAT(rig.NoteOf("placement"), HasSubstr("n5 takes the place of n2"));
  EXPECT_THAT(rig.NoteOf("order"), HasSubstr("n0, n5, n1, n3; a ring over them crosses 2 levels"));
  rig.ExecuteAll();
  Lose(rig, 0);
  EXPECT_THAT(rig.gang.active(), ElementsAre(4, 5, 1, 3)) << "the only one that is left";
  EXPECT_THAT(rig.NoteOf("order"), HasSubstr("crosses 3 levels of switches, 3 in Slurm's order, 3 at best"));
}

TEST(GangOrder, OfSparesThatAreAsNearTheFirstIsTaken) {
  Rig rig(Below("abcc", 1, 2));
  rig.Run();
  Lose(rig, 0);
  EXPECT_THAT(rig.gang.active(), ElementsAre(2, 1));
}

TEST(GangOrder, WithAllNodesOfASwitchTheirSparesAreTheNearestToThemselves) {
  Rig rig(Below("aaba", 1, 2));
  rig.Run();
  rig.Silence(0);
  rig.Silence(1);
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(3, 2));
}

TEST(GangOrder, ASpareWithAnotherNumberOfTasksIsNotTakenHoweverNear) {
  Rig rig(Below("abab", 2, 2));
  rig.Join(0);
  rig.Join(1);
  NodeJoined small = rig.Node(2);
  small.members.pop_back();
  rig.Feed(small);
  rig.Join(3);
  rig.ExecuteAll();
  Lose(rig, 0);
  EXPECT_THAT(rig.gang.active(), ElementsAre(3, 1));
}

TEST(GangOrder, AGangThatShrinksKeepsTheOrderOfTheOthers) {
  Rig rig(Below("abab", 1, 0, 2));
  rig.Run();
  Lose(rig, 2);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 1, 3));
  EXPECT_THAT(rig.NoteOf("order"), HasSubstr("crosses 2 levels of switches, 2 in Slurm's order, 2 at best"));
}

TEST(GangOrder, EachRoleIsOrderedByItself) {
  Settings settings = Below("abababa");
  settings.roles = {{.name = "chief", .kind = RoleKind::kChief}, {.name = "worker"}};
  settings.node_roles = {1, 1, 1, 1, 0, 1, 1};
  Rig rig(settings);
  rig.JoinAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(4, 0, 2, 6, 1, 3, 5));
  EXPECT_THAT(rig.NoteOf("order"),
              HasSubstr("a ring over each role crosses 2 levels of switches, 4 in Slurm's"));
}

TEST(GangOrder, ACoordinatorThatTakesOverKeepsTheOrderWhateverItsTopologySays) {
  for (const char* leaves : {"abab", "aabb"}) {
    Rig rig(Below(leaves), {.generation = 1, .running = true, .active = {3, 1, 2, 0}});
    for (uint32_t node = 0; node < 4; ++node) rig.Join(node, MemberState::kRunning, 1);
    EXPECT_EQ(rig.gang.state(), State::kRunning);
    EXPECT_THAT(rig.gang.active(), ElementsAre(3, 1, 2, 0));
    rig.Exit(0, ExitCode(1));
    rig.StopAll();
    EXPECT_THAT(rig.gang.active(), ElementsAre(3, 1, 2, 0));
    EXPECT_EQ(rig.NoteOf("order"), "");
  }
}

TEST(GangOrder, ALongListOfNodesIsCut) {
  Rig rig(Below(std::string(500, 'a') + std::string(500, 'b')));
  rig.JoinAll();
  EXPECT_THAT(rig.NoteOf("order"), HasSubstr(", …; a ring"));
  EXPECT_LT(rig.NoteOf("order").size(), 600U);
}

// Nodes are lost, one or several at once, and come back; there is always a spare for each.
TEST(GangOrder, SurvivorsKeepTheirRanksAndNoOtherSpareWouldBeNearer) {
  std::mt19937_64 random(FirstSchedule());
  constexpr uint32_t kNodes = 16;
  constexpr uint32_t kSpares = 5;
  for (int run = 0; run < 100; ++run) {
    std::string leaves;
    for (uint32_t node = 0; node < kNodes; ++node) leaves += static_cast<char>('a' + random() % 5);
    const Settings settings = Below(leaves, 2, kSpares);
    const auto tree = SwitchTree::Of(settings.node_switches, {});
    ASSERT_TRUE(tree);
    Rig rig(settings);
    rig.Run();
    std::vector<uint32_t> lost;
    for (uint64_t step = 1; step <= 20; ++step) {
      std::vector<uint32_t> before = rig.gang.active();
      std::vector<uint32_t> spares;
      for (uint32_t node = 0; node < kNodes; ++node) {
        if (rig.gang.IsSpare(node)) spares.push_back(node);
      }
      const size_t count = std::min<size_t>(spares.size(), 1 + random() % 3);
      std::map<size_t, uint32_t> gone;  // by place
      while (gone.size() < count) gone.emplace(random() % before.size(), 0);
      for (auto& [place, node] : gone) lost.push_back(node = before[place]);
      for (const auto& [place, node] : gone) rig.Silence(node);
      rig.StopAll();
      rig.ExecuteAll();
      ASSERT_EQ(rig.gang.state(), State::kRunning);
      const std::vector<uint32_t> after = rig.gang.active();
      ASSERT_EQ(after.size(), before.size());
      for (size_t place = 0; place < after.size(); ++place) {
        ASSERT_TRUE(gone.contains(place) || after[place] == before[place]) << leaves << ", step " << step;
        for (uint32_t i = 0; i < 2; ++i)
          ASSERT_EQ(rig.gang.members()[after[place] * 2 + i].rank, place * 2 + i);
      }
      if (gone.size() == 1) {
        for (const uint32_t other : spares) {
          before[gone.begin()->first] = other;
          ASSERT_LE(tree->Crossings(after), tree->Crossings(before)) << leaves << ", step " << step;
        }
      }
      rig.Feed(Progressed{step});
      while (lost.size() > 2) {
        rig.Join(lost.front(), MemberState::kStopped, rig.gang.generation() - 1);
        lost.erase(lost.begin());
      }
    }
  }
}

}  // namespace
}  // namespace muster::gang
