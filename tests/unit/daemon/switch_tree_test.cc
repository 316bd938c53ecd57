#include "daemon/gang/switch_tree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test_seed.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Switches = std::vector<std::vector<std::string>>;  // by node
using Nodes = std::vector<uint32_t>;

SwitchTree TreeOf(const Switches& switches) {
  auto tree = SwitchTree::Of(switches, {});
  EXPECT_TRUE(tree) << tree.error().message;
  return *std::move(tree);
}

Nodes All(const Switches& switches) {
  Nodes nodes(switches.size());
  std::iota(nodes.begin(), nodes.end(), 0U);
  return nodes;
}

// Up to three levels, and at each switch up to eight below it; the nodes are dealt out to the leaves by chance.
Switches RandomTree(std::mt19937_64& random, size_t nodes) {
  const auto pick = [&](size_t low, size_t high) {
    return std::uniform_int_distribution<size_t>(low, high)(random);
  };
  const size_t levels = pick(1, 3);
  std::vector<size_t> children(levels);
  for (size_t& count : children) count = pick(1, 8);
  Switches switches(nodes);
  for (auto& above : switches) {
    std::string name = "s";
    for (const size_t count : children) above.push_back(name += fmt::format(".{}", pick(0, count - 1)));
  }
  return switches;
}

// The closed form, from the names alone: each switch that has some of the nodes, and not all.
uint64_t Optimum(const Switches& switches, const Nodes& nodes) {
  std::map<std::string, size_t> below;
  for (const uint32_t node : nodes) {
    for (const std::string& one : switches[node]) ++below[one];
  }
  return static_cast<uint64_t>(std::count_if(below.begin(), below.end(),
                                             [&](const auto& item) { return item.second < nodes.size(); }));
}

TEST(SwitchTree, CountsTheLevelsUpToTheSwitchThatTwoNodesShare) {
  const SwitchTree tree = TreeOf({{"core", "s1", "a"},
                                  {"core", "s1", "a"},
                                  {"core", "s1", "b"},
                                  {"core", "s2", "c"},
                                  {"other", "s3", "d"}});
  EXPECT_EQ(tree.Distance(0, 0), 0U);
  EXPECT_EQ(tree.Distance(0, 1), 0U);
  EXPECT_EQ(tree.Distance(0, 2), 1U);
  EXPECT_EQ(tree.Distance(3, 1), 2U);
  EXPECT_EQ(tree.Distance(4, 0), 3U) << "two trees";
  EXPECT_EQ(tree.Crossings({0, 2}), 2U) << "a ring comes back";
  EXPECT_EQ(tree.Crossings({0, 2, 1, 3}), 6U);
  EXPECT_EQ(tree.Crossings({0}), 0U);
  EXPECT_EQ(tree.Crossings({}), 0U);
}

TEST(SwitchTree, OrdersSwitchesAndNodesAsTheyComeFirst) {
  const SwitchTree tree = TreeOf({{"x", "a"}, {"x", "b"}, {"x", "a"}, {"x", "c"}, {"x", "b"}});
  EXPECT_THAT(tree.Order({0, 1, 2, 3, 4}), ElementsAre(0, 2, 1, 4, 3));
  EXPECT_THAT(tree.Order({4, 3, 2, 1, 0}), ElementsAre(4, 1, 3, 2, 0));
  EXPECT_THAT(tree.Order({}), ElementsAre());
}

TEST(SwitchTree, AnOrderThatHasTheLeastCrossingsStays) {
  const SwitchTree tree = TreeOf({{"x", "a"}, {"x", "b"}, {"x", "b"}, {"x", "a"}});
  EXPECT_THAT(tree.Order({0, 1, 2, 3}), ElementsAre(0, 1, 2, 3)) << "the ring closes below a";
}

TEST(SwitchTree, ItsOrderHasTheLeastCrossingsOnRandomTrees) {
  std::mt19937_64 random(FirstSchedule());
  uint64_t crossings = 0;
  uint64_t optimum = 0;
  uint64_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    const Switches switches = RandomTree(random, 1 + random() % 1024);
    const SwitchTree tree = TreeOf(switches);
    const Nodes nodes = All(switches);
    const Nodes order = tree.Order(nodes);
    const uint64_t least = Optimum(switches, nodes);
    Nodes sorted = order;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, nodes) << "tree " << i;
    ASSERT_EQ(tree.Crossings(order), least) << "tree " << i << " of seed " << TestSeed();
    ASSERT_EQ(tree.LeastCrossings(nodes), least) << "tree " << i << " of seed " << TestSeed();
    ASSERT_EQ(TreeOf(switches).Order(nodes), order) << "the same input, another order";
    crossings += tree.Crossings(order);
    optimum += least;
    before += tree.Crossings(nodes);
  }
  std::printf("crossings_over_optimum %.3f; of the order as the nodes come %.1f\n",
              static_cast<double>(crossings) / static_cast<double>(optimum),
              static_cast<double>(before) / static_cast<double>(optimum));
}

TEST(SwitchTree, NoOrderOfAFewNodesHasLess) {
  std::mt19937_64 random(FirstSchedule());
  for (int i = 0; i < 100; ++i) {
    const Switches switches = RandomTree(random, 1 + random() % 7);
    const SwitchTree tree = TreeOf(switches);
    Nodes nodes = All(switches);
    uint64_t least = UINT64_MAX;
    do {
      least = std::min(least, tree.Crossings(nodes));
    } while (std::next_permutation(nodes.begin(), nodes.end()));
    ASSERT_EQ(tree.LeastCrossings(nodes), least) << "tree " << i << " of seed " << TestSeed();
  }
}

TEST(SwitchTree, ItsOrderIsNeverWorseThanSlurmsOnFragmentedPlacements) {
  std::mt19937_64 random(FirstSchedule());
  Switches cluster;  // 1,024 nodes, 16 below a leaf, 8 leaves below a spine
  for (int node = 0; node < 1024; ++node)
    cluster.push_back({"core", fmt::format("spine{}", node / 128), fmt::format("leaf{}", node / 16)});
  std::vector<std::vector<std::string>> shuffled = cluster;
  for (int i = 0; i < 1000; ++i) {
    if (i % 100 == 0)
      std::shuffle(shuffled.begin(), shuffled.end(), random);  // names that say nothing of racks
    const SwitchTree tree = TreeOf(i % 2 == 0 ? cluster : shuffled);
    Nodes placed;
    const uint64_t share = 1 + random() % 100;
    for (uint32_t node = 0; node < cluster.size(); ++node) {
      if (random() % 100 < share) placed.push_back(node);
    }
    ASSERT_LE(tree.Crossings(tree.Order(placed)), tree.Crossings(placed)) << "placement " << i;
  }
}

TEST(SwitchTree, WhatIsNoTreeIsRefusedWithTheReason) {
  const std::vector<std::string> good = {"x", "a"};
  const std::pair<Switches, const char*> table[] = {
      {{}, "has none of its nodes"},
      {{{}, {}}, "has none of its nodes"},
      {{good, {}}, "does not have n2"},
      {{{}, good}, "does not have n1"},
      {{good, {"x", ""}}, "a switch above n2 has no name"},
      {{good, {"", "a"}}, "a switch above n2 has no name"},
      {{good, {"a"}}, "above n1 are 2, and above n2 they are 1"},
      {{good, {"x", "y", "b"}}, "above n1 are 2, and above n2 they are 3"},
      {{good, std::vector<std::string>(17, "s")}, "n2 is below more than 16 levels"},
      {{std::vector<std::string>(10'000, "s"), good}, "n1 is below more than 16 levels"},
      {{good, {"x", std::string(256, 'a')}}, "above n2 has more than 255 bytes"},
      {{good, {"y", "a"}}, "switch a is at two places"},
      {{good, {"a", "b"}}, "switch a is at two places"},
      {{{"x", "x"}, good}, "switch x is at two places"},
  };
  for (const auto& [switches, why] : table) {
    const auto tree = SwitchTree::Of(switches, {"n1", "n2"});
    ASSERT_FALSE(tree) << why;
    EXPECT_THAT(tree.error().message, HasSubstr(why));
    EXPECT_LT(tree.error().message.size(), 200U);
  }
  EXPECT_TRUE(SwitchTree::Of({std::vector<std::string>{"x", std::string(255, 'a')}}, {}));
  std::vector<std::string> deep(16);
  for (size_t level = 0; level < deep.size(); ++level) deep[level] = fmt::format("s{}", level);
  EXPECT_TRUE(SwitchTree::Of({deep, deep}, {}));
}

}  // namespace
}  // namespace muster::gang
