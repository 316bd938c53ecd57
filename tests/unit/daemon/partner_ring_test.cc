#include "daemon/partner/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// `saves`: of each node; each has two ranks.
Roster RosterOf(const std::vector<bool>& saves) {
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
    const Roster roster = RosterOf(std::vector<bool>(count, true));
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
  const Roster roster = RosterOf(std::vector<bool>(16, true));
  // Two switches of eight.
  for (size_t place = 0; place < 16; ++place) EXPECT_NE(*PartnerOf(roster, place) / 8, place / 8);
}

TEST(PartnerRing, ANodeAloneHasNone) {
  const Roster roster = RosterOf({true});
  EXPECT_FALSE(PartnerOf(roster, 0));
  EXPECT_THAT(RanksKeptBy(roster, 0), IsEmpty());
  EXPECT_FALSE(PartnerOf(Roster(), 0));
}

TEST(PartnerRing, WhoSavesNothingNeedsNoneAndIsNoneWhereOthersSave) {
  const Roster roster = RosterOf({true, false, true});
  EXPECT_EQ(PartnerOf(roster, 0), 2U);
  EXPECT_EQ(PartnerOf(roster, 2), 0U);
  EXPECT_FALSE(PartnerOf(roster, 1));
  EXPECT_THAT(RanksKeptBy(roster, 1), IsEmpty());
  EXPECT_EQ(roster.Savers(), 4U);
}

TEST(PartnerRing, OneThatSavesAloneTakesAnyOther) {
  const Roster first = RosterOf({true, false, false});
  EXPECT_EQ(PartnerOf(first, 0), 1U);
  EXPECT_THAT(RanksKeptBy(first, 1), ElementsAre(0, 1));
  EXPECT_THAT(RanksKeptBy(first, 2), IsEmpty());
  const Roster last = RosterOf({false, true});
  EXPECT_EQ(PartnerOf(last, 1), 0U);
  EXPECT_THAT(RanksKeptBy(last, 0), ElementsAre(2, 3));
}

TEST(PartnerRing, ARankIsFoundOnItsNode) {
  const Roster roster = RosterOf({true, true});
  EXPECT_EQ(roster.PlaceOf(3), 1U);
  EXPECT_FALSE(roster.PlaceOf(4));
}

}  // namespace
}  // namespace muster
