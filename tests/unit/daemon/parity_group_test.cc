#include "daemon/partner/parity_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace muster {
namespace {

using ::testing::ElementsAre;

Roster RosterOf(const std::vector<std::string>& domains) {
  Roster roster;
  for (uint32_t i = 0; i < domains.size(); ++i)
    roster.nodes.push_back({"n" + std::to_string(i), true, {2 * i, 2 * i + 1}, domains[i]});
  return roster;
}

// By the names of their nodes, each group once; every node must see its own as the others do.
std::set<std::vector<std::string>> GroupsOf(const Roster& roster, size_t size) {
  std::set<std::vector<std::string>> groups;
  std::map<std::string, size_t> seen;
  for (size_t place = 0; place < roster.nodes.size(); ++place) {
    const auto group = GroupOf(roster, place, size);
    if (!group) continue;
    EXPECT_EQ(group->nodes[group->self].name, roster.nodes[place].name);
    EXPECT_EQ(group->nodes[group->self].ranks, roster.nodes[place].ranks);
    std::vector<std::string> names;
    for (const auto& node : group->nodes) names.push_back(node.name);
    groups.insert(names);
    ++seen[roster.nodes[place].name];
  }
  size_t members = 0;
  for (const auto& group : groups) members += group.size();
  EXPECT_EQ(members, seen.size());
  return groups;
}

TEST(ParityGroup, NodesAreDealtOutToGroupsOfTheSize) {
  EXPECT_THAT(GroupsOf(RosterOf(std::vector<std::string>(6)), 3),
              ElementsAre(ElementsAre("n0", "n2", "n4"), ElementsAre("n1", "n3", "n5")));
  EXPECT_THAT(GroupsOf(RosterOf(std::vector<std::string>(5)), 4),
              ElementsAre(ElementsAre("n0", "n1", "n2", "n3", "n4")));
}

TEST(ParityGroup, TooFewNodesOrNoSizeIsNoGroup) {
  EXPECT_TRUE(GroupsOf(RosterOf(std::vector<std::string>(2)), 3).empty());
  for (const size_t size : {0U, 1U, 2U})
    EXPECT_TRUE(GroupsOf(RosterOf(std::vector<std::string>(8)), size).empty());
  // Fewer than the size make one all the same.
  EXPECT_EQ(GroupsOf(RosterOf(std::vector<std::string>(3)), 8).size(), 1U);
}

TEST(ParityGroup, WhoSavesNothingIsInNoGroup) {
  Roster roster = RosterOf(std::vector<std::string>(5));
  roster.nodes[1].saves = roster.nodes[3].saves = false;
  EXPECT_THAT(GroupsOf(roster, 3), ElementsAre(ElementsAre("n0", "n2", "n4")));
  EXPECT_FALSE(GroupOf(roster, 1, 3));
}

TEST(ParityGroup, NoMoreOfOneDomainAreTogetherThanMustBe) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const size_t nodes = 3 + random() % 40;
    const size_t racks = 1 + random() % 8;
    std::vector<std::string> domains(nodes);
    for (std::string& domain : domains) domain = "rack" + std::to_string(random() % racks);
    const Roster roster = RosterOf(domains);
    const size_t size = 3 + random() % 6;
    const auto groups = GroupsOf(roster, size);
    ASSERT_EQ(groups.size(), std::max<size_t>(nodes / size, 1));
    for (const auto& group : groups) {
      ASSERT_GE(group.size(), std::min(size, nodes));
      ASSERT_LT(group.size(), std::max(2 * size, nodes + 1));
      std::map<std::string, size_t> of_domain;
      for (const std::string& name : group) ++of_domain[domains[std::stoul(name.substr(1))]];
      for (const auto& [domain, count] : of_domain) {
        const auto all = static_cast<size_t>(std::count(domains.begin(), domains.end(), domain));
        ASSERT_LE(count, (all + groups.size() - 1) / groups.size());
      }
    }
  }
}

TEST(ParityGroup, EveryChunkIsInThePartOfOneOtherNodeAndEachKeepsOneOfEach) {
  for (const size_t nodes : {2U, 3U, 5U, 16U}) {
    for (const uint64_t chunks : {0U, 1U, 2U, 7U, 15U, 16U, 100U}) {
      for (size_t owner = 0; owner < nodes; ++owner) {
        std::vector<int> kept(chunks);
        for (size_t keeper = 0; keeper < nodes; ++keeper) {
          if (keeper == owner) continue;
          const ChunkSpan part = PartOf(nodes, owner, keeper, chunks);
          ASSERT_LE(part.count, (chunks + nodes - 2) / (nodes - 1));
          for (uint64_t chunk = part.first; chunk < part.first + part.count; ++chunk) ++kept.at(chunk);
        }
        ASSERT_TRUE(std::all_of(kept.begin(), kept.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

TEST(ParityGroup, ExclusiveOrGoesAsFarAsBothDo) {
  std::mt19937 random(1);
  for (const size_t bytes : {0U, 1U, 63U, 64U, 65U, 1'000U}) {
    std::vector<std::byte> a(bytes);
    std::vector<std::byte> b(bytes + 3);
    for (auto* each : {&a, &b}) {
      for (std::byte& byte : *each) byte = static_cast<std::byte>(random());
    }
    std::vector<std::byte> expected = a;
    for (size_t i = 0; i < bytes; ++i) expected[i] ^= b[i];
    XorInto(a, b);
    ASSERT_EQ(a, expected);
    const std::vector<std::byte> before = b;
    XorInto(b, expected);
    XorInto(b, expected);
    ASSERT_EQ(b, before);
  }
}

}  // namespace
}  // namespace muster
