#include "daemon/partner/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// `saves`: of each node; each has two ranks.
Roster RingOf(const std::vector<bool>& saves) {
  Roster roster;
  uint32_t rank = 0;
  for (size_t i = 0; i < saves.size(); ++i) {
    roster.nodes.push_back({"n" + std::to_string(i), saves[i], {rank, rank + 1}});
    rank += 2;
  }
  return roster;
}

TEST(PartnerRing, EveryNodeHasOnePartnerAndIsOnes) {
  for (const size_t count : {2U, 3U, 4U, 7U, 16U, 101U}) {
    const Roster roster = RingOf(std::vector<bool>(count, true));
    std::set<size_t> partners;
    for (size_t place = 0; place < count; ++place) {
      const auto partner = PartnerOf(roster, place);
      ASSERT_TRUE(partner);
      EXPECT_NE(*partner, place);
      EXPECT_EQ(RanksKeptBy(roster, *partner), roster.nodes[place].ranks);
      partners.insert(*partner);
    }
    EXPECT_EQ(partners.size(), count);
  }
}

TEST(PartnerRing, APartnerIsInAnotherHalfOfTheNodes) {
  const Roster roster = RingOf(std::vector<bool>(16, true));
  // Two switches of eight.
  for (size_t place = 0; place < 16; ++place) EXPECT_NE(*PartnerOf(roster, place) / 8, place / 8);
}

// In how many pairs of a node and its partner both are of one domain.
size_t PairsOfOneDomain(Roster roster, const std::vector<std::string>& domains) {
  std::set<size_t> partners;
  size_t pairs = 0;
  for (size_t place = 0; place < domains.size(); ++place) roster.nodes[place].domain = domains[place];
  for (size_t place = 0; place < domains.size(); ++place) {
    const auto partner = PartnerOf(roster, place);
    if (!partner || *partner == place) return SIZE_MAX;
    EXPECT_EQ(RanksKeptBy(roster, *partner), roster.nodes[place].ranks);
    partners.insert(*partner);
    pairs += domains[*partner] == domains[place] ? 1 : 0;
  }
  return partners.size() == domains.size() ? pairs : SIZE_MAX;
}

TEST(PartnerRing, APartnerIsInAnotherDomain) {
  const auto pairs = [](const std::vector<std::string>& domains) {
    return PairsOfOneDomain(RingOf(std::vector<bool>(domains.size(), true)), domains);
  };
  EXPECT_EQ(pairs({"a", "b", "a", "b"}), 0U);  // half the list further is the same one
  EXPECT_EQ(pairs({"a", "b", "c", "a", "b", "c"}), 0U);
  EXPECT_EQ(pairs({"a", "a", "", "b", "b", "", "a", "c"}), 0U);
  EXPECT_EQ(pairs({"b", "a", "b"}), 1U);  // two of three: one of them has the other
  EXPECT_EQ(pairs({"a", "a", "a", "b", "a"}), 3U);
  EXPECT_EQ(pairs({"a", "a"}), 2U);
}

TEST(PartnerRing, AsFewAsCanBeAreOfOneDomain) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> domains(2 + random() % 40);
    std::map<std::string, size_t> sizes;
    const size_t kinds = 1 + random() % 6;
    for (std::string& domain : domains) {
      domain = "leaf" + std::to_string(random() % kinds);
      ++sizes[domain];
    }
    size_t largest = 0;
    for (const auto& [domain, size] : sizes) largest = std::max(largest, size);
    const size_t others = domains.size() - largest;
    EXPECT_EQ(PairsOfOneDomain(RingOf(std::vector<bool>(domains.size(), true)), domains),
              largest > others ? largest - others : 0);
  }
}

TEST(PartnerRing, OneThatSavesAloneTakesOneOfAnotherDomain) {
  Roster roster = RingOf({false, true, false, false});
  for (const size_t place : {0U, 1U, 2U}) roster.nodes[place].domain = "a";
  roster.nodes[3].domain = "b";
  EXPECT_EQ(PartnerOf(roster, 1), 3U);
  EXPECT_THAT(RanksKeptBy(roster, 3), ElementsAre(2, 3));
  EXPECT_THAT(RanksKeptBy(roster, 0), IsEmpty());
}

TEST(PartnerRing, ANodeAloneHasNone) {
  const Roster roster = RingOf({true});
  EXPECT_FALSE(PartnerOf(roster, 0));
  EXPECT_THAT(RanksKeptBy(roster, 0), IsEmpty());
  EXPECT_FALSE(PartnerOf(Roster(), 0));
}

TEST(PartnerRing, WhoSavesNothingNeedsNoneAndIsNoneWhereOthersSave) {
  const Roster roster = RingOf({true, false, true});
  EXPECT_EQ(PartnerOf(roster, 0), 2U);
  EXPECT_EQ(PartnerOf(roster, 2), 0U);
  EXPECT_FALSE(PartnerOf(roster, 1));
  EXPECT_THAT(RanksKeptBy(roster, 1), IsEmpty());
  EXPECT_EQ(roster.Savers(), 4U);
}

TEST(PartnerRing, OneThatSavesAloneTakesAnyOther) {
  const Roster first = RingOf({true, false, false});
  EXPECT_EQ(PartnerOf(first, 0), 1U);
  EXPECT_THAT(RanksKeptBy(first, 1), ElementsAre(0, 1));
  EXPECT_THAT(RanksKeptBy(first, 2), IsEmpty());
  const Roster last = RingOf({false, true});
  EXPECT_EQ(PartnerOf(last, 1), 0U);
  EXPECT_THAT(RanksKeptBy(last, 0), ElementsAre(2, 3));
}

TEST(PartnerRing, ARankIsFoundOnItsNode) {
  const Roster roster = RingOf({true, true});
  EXPECT_EQ(roster.PlaceOf(3), 1U);
  EXPECT_FALSE(roster.PlaceOf(4));
}

}  // namespace
}  // namespace muster
