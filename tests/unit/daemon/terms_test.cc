#include "daemon/coordinator/terms.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/daemon/gang_rig.h"

namespace muster {
namespace {

using gang::Rig;
using lease::WitnessSet;
using Nodes = std::vector<lease::NodeIndex>;
using Set = std::vector<uint32_t>;  // as a record has it

constexpr lease::NodeIndex kSelf = 1;

// The first node comes last: it is the batch host.
std::vector<uint32_t> CandidatesOf(uint32_t nodes) {
  std::vector<uint32_t> candidates;
  for (uint32_t node = 1; node < nodes; ++node) candidates.push_back(node);
  candidates.push_back(0);
  return candidates;
}

// A gang of which a record says that it runs, as the coordinator finds it that takes over.
gang::Memory Running(std::vector<uint32_t> lost = {}) {
  gang::Memory memory;
  memory.generation = 1;
  memory.running = true;
  memory.lost = std::move(lost);
  return memory;
}

TEST(Terms, ANewGangsFirstTermKnowsOfNoMembersAndOfNoTermBefore) {
  Rig rig(3, 1);
  Terms terms(kSelf, CandidatesOf(3));
  terms.Take({.asked_at = 5, .taken_at = 6}, std::nullopt, rig.gang, {});
  const lease::LeadSettings& lead = terms.Lead(1, rig.gang);
  EXPECT_EQ(lead.term, 1U);
  EXPECT_EQ(lead.self, kSelf);
  EXPECT_EQ(lead.witnesses, (WitnessSet{1, 2, 0}));
  EXPECT_FALSE(lead.inherited);
  EXPECT_TRUE(lead.former.empty());
  EXPECT_TRUE(lead.watched.empty());
  EXPECT_EQ(lead.asked_at, 5);
  EXPECT_EQ(lead.taken_at, 6);
}

TEST(Terms, WhoTakesOverLeavesOutWhomTheRecordCallsLostUnlessThatNodeIsHere) {
  Rig rig(Rig::SettingsOf(4, 1), Running({2, 3}));
  Terms terms(kSelf, CandidatesOf(4));
  const Terms::Found found{{{1, 2, 3, 0}, {{0, 1}}}, {0}};
  terms.Take({.promised = true, .closed = {3}}, found, rig.gang, {1, 3});
  const lease::LeadSettings& lead = terms.Lead(7, rig.gang);
  EXPECT_EQ(lead.witnesses, (WitnessSet{1, 3, 0}));
  EXPECT_EQ(lead.former, (std::vector<WitnessSet>{{0, 1}, {1, 2, 3, 0}}));
  EXPECT_EQ(lead.closed, (WitnessSet{3, 0})) << "musterd had gone there";
  EXPECT_EQ(lead.watched, (Nodes{0, 1})) << "members of lost nodes have ended";
  EXPECT_TRUE(lead.inherited);
  EXPECT_TRUE(lead.promised);
  EXPECT_FALSE(lead.returned);
}

TEST(Terms, WhoComesBackAsCoordinatorHasNobodysPromise) {
  Rig rig(Rig::SettingsOf(2, 1), Running());
  Terms terms(kSelf, CandidatesOf(2));
  terms.Take({}, Terms::Found{{{1, 0}, {}}, {}}, rig.gang, {});
  EXPECT_FALSE(terms.lead().promised);
  EXPECT_TRUE(terms.lead().returned);
}

TEST(Terms, NoMoreThanEightFormerSetsAreKept) {
  Rig rig(Rig::SettingsOf(2, 1), Running());
  Terms terms(kSelf, CandidatesOf(2));
  Terms::Found found{{{0, 1}, {}}, {}};
  for (uint32_t node = 0; node < 9; ++node) found.sets.former.push_back({node});
  terms.Take({}, found, rig.gang, {});
  ASSERT_EQ(terms.lead().former.size(), 8U);
  EXPECT_EQ(terms.lead().former.front(), WitnessSet{2});
  EXPECT_EQ(terms.lead().former.back(), (WitnessSet{0, 1}));
  const Terms::Sets next = terms.Next(rig.gang);
  ASSERT_EQ(next.former.size(), 8U);
  EXPECT_EQ(next.former.back(), (Set{1, 0})) << "the newest";
}

TEST(Terms, TheTermAfterThisOneKnowsWhoseMusterdHasGoneAndHasWatchedEverybody) {
  Rig rig(3, 1);
  rig.Run();
  Terms terms(kSelf, CandidatesOf(3));
  terms.Take({.promised = true}, std::nullopt, rig.gang, {0, 1, 2});
  terms.Lead(1, rig.gang);
  terms.SetStop(4);
  terms.SetQuorum(true);
  rig.Feed(gang::NodeLeft{2});
  terms.Raised(8, 9, rig.gang);
  const lease::LeadSettings& lead = terms.Lead(2, rig.gang);
  EXPECT_EQ(lead.former, (std::vector<WitnessSet>{{1, 2, 0}}));
  EXPECT_EQ(lead.closed, WitnessSet{2});
  EXPECT_EQ(lead.watched, (Nodes{0, 1, 2}));
  EXPECT_TRUE(lead.inherited);
  EXPECT_FALSE(lead.promised);
  EXPECT_FALSE(lead.returned);
  EXPECT_EQ(lead.asked_at, 8);
  EXPECT_EQ(lead.taken_at, 9);
  EXPECT_EQ(lead.stop_generation, 4U) << "what was stopped stays so";
  EXPECT_FALSE(terms.quorum()) << "nobody has been heard in this term";
}

TEST(Terms, FormerSetsAreForgottenWhenAllNodesThatLiveHaveBeenHeard) {
  Rig rig(3, 1);
  rig.Run();
  Terms terms(kSelf, CandidatesOf(3));
  terms.Take({}, Terms::Found{{{1, 2, 0}, {}}, {}}, rig.gang, {0, 1, 2});
  terms.Lead(2, rig.gang);
  rig.Feed(gang::NodeSilent{2, 0});
  terms.Heard(1, rig.gang);
  EXPECT_EQ(terms.sets().former.size(), 1U);
  terms.Heard(0, rig.gang);
  EXPECT_TRUE(terms.sets().former.empty());
}

TEST(Terms, ANodeOfAnEarlierTermIsProbedUntilItIsHeardOverALinkOrRefuses) {
  Rig rig(Rig::SettingsOf(4, 1), Running());
  Terms terms(kSelf, CandidatesOf(4));
  terms.Take({.closed = {3}}, Terms::Found{{{1, 2, 3, 0}, {}}, {}}, rig.gang, {});
  terms.Lead(2, rig.gang);
  EXPECT_EQ(terms.Unheard(rig.gang), (Nodes{0, 1, 2})) << "that of 3 has gone, that is known";
  terms.Heard(0, rig.gang);
  EXPECT_EQ(terms.Unheard(rig.gang), (Nodes{0, 1, 2})) << "it has no link yet";
  rig.Join(0, gang::MemberState::kRunning, 1);
  EXPECT_EQ(terms.Unheard(rig.gang), (Nodes{1, 2}));
  terms.Refuses(2);
  EXPECT_EQ(terms.Unheard(rig.gang), (Nodes{1}));
}

TEST(Terms, WhoHasLeftIsAwayAndWhoIsLostIsNot) {
  Rig rig(3, 1);
  rig.Run();
  rig.Feed(gang::NodeLeft{0});
  rig.Feed(gang::NodeSilent{2, 0});
  EXPECT_EQ(Terms::Away(rig.gang), (Nodes{0}));
}

}  // namespace
}  // namespace muster
