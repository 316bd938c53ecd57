#include "daemon/coordinator/terms.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tests/unit/daemon/gang_rig.h"

namespace muster {
namespace {

using gang::Rig;
using lease::WitnessSet;
using Indexes = std::vector<lease::NodeIndex>;
using Set = std::vector<uint32_t>;  // as a record has it

constexpr lease::NodeIndex kSelf = 1;
constexpr lease::Nanos kAfterLoss = 10;
constexpr lease::Nanos kToGrow = 1'000;

// The first node comes last: it is the batch host.
Terms TermsOf(uint32_t nodes) {
  std::vector<uint32_t> candidates;
  for (uint32_t node = 1; node < nodes; ++node) candidates.push_back(node);
  candidates.push_back(0);
  return {kSelf, candidates, {.after_loss = kAfterLoss, .to_grow = kToGrow}};
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
  Terms terms = TermsOf(3);
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
  Terms terms = TermsOf(4);
  const Terms::Found found{{{1, 2, 3, 0}, {{0, 1}}}, {0}};
  terms.Take({.promised = true, .closed = {3}}, found, rig.gang, {1, 3});
  const lease::LeadSettings& lead = terms.Lead(7, rig.gang);
  EXPECT_EQ(lead.witnesses, (WitnessSet{1, 3, 0}));
  EXPECT_EQ(lead.former, (std::vector<WitnessSet>{{0, 1}, {1, 2, 3, 0}}));
  EXPECT_EQ(lead.closed, (WitnessSet{3, 0})) << "musterd had gone there";
  EXPECT_EQ(lead.watched, (Indexes{0, 1})) << "members of lost nodes have ended";
  EXPECT_TRUE(lead.inherited);
  EXPECT_TRUE(lead.promised);
  EXPECT_FALSE(lead.returned);
}

TEST(Terms, WhoComesBackAsCoordinatorHasNobodysPromise) {
  Rig rig(Rig::SettingsOf(2, 1), Running());
  Terms terms = TermsOf(2);
  terms.Take({}, Terms::Found{{{1, 0}, {}}, {}}, rig.gang, {});
  EXPECT_FALSE(terms.lead().promised);
  EXPECT_TRUE(terms.lead().returned);
}

TEST(Terms, NoMoreThanEightFormerSetsAreKept) {
  Rig rig(Rig::SettingsOf(2, 1), Running());
  Terms terms = TermsOf(2);
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
  Terms terms = TermsOf(3);
  terms.Take({.promised = true}, std::nullopt, rig.gang, {0, 1, 2});
  terms.Lead(1, rig.gang);
  terms.SetStop(4);
  terms.SetQuorum(true);
  for (const uint32_t node : {1, 2}) terms.Heard(node, rig.gang);
  rig.Feed(gang::NodeLeft{2});
  terms.Next(rig.gang);
  terms.Raised(8, 9, rig.gang);
  const lease::LeadSettings& lead = terms.Lead(2, rig.gang);
  EXPECT_EQ(lead.former, (std::vector<WitnessSet>{{1, 2, 0}}));
  EXPECT_EQ(lead.closed, WitnessSet{2});
  EXPECT_EQ(lead.watched, (Indexes{0, 1, 2}));
  EXPECT_EQ(lead.heard_before, (std::map<lease::NodeIndex, uint32_t>{{1, 1}, {2, 1}}));
  EXPECT_TRUE(lead.inherited);
  EXPECT_FALSE(lead.promised);
  EXPECT_FALSE(lead.returned);
  EXPECT_EQ(lead.asked_at, 8);
  EXPECT_EQ(lead.taken_at, 9);
  EXPECT_EQ(lead.stop_generation, 4U) << "what was stopped stays so";
  EXPECT_FALSE(terms.quorum()) << "nobody has been heard in this term";
}

TEST(Terms, ATermKnowsInHowManyTermsANodeThatHadBeatenHasNot) {
  Rig rig(3, 1);
  rig.Run();
  Terms terms = TermsOf(3);
  terms.Take({}, std::nullopt, rig.gang, {0, 1, 2});
  const std::vector<Indexes> beat = {{0, 1, 2}, {0, 2}, {0}};
  for (uint64_t term = 1; term <= beat.size(); ++term) {
    terms.Lead(term, rig.gang);
    for (const lease::NodeIndex node : beat[term - 1]) terms.Heard(node, rig.gang);
    terms.Next(rig.gang);
    terms.Raised(8, 9, rig.gang);
  }
  EXPECT_EQ(terms.lead().heard_before, (std::map<lease::NodeIndex, uint32_t>{{0, 1}, {1, 3}, {2, 2}}));
}

TEST(Terms, FormerSetsAreForgottenWhenAllNodesThatLiveHaveBeenHeard) {
  Rig rig(3, 1);
  rig.Run();
  Terms terms = TermsOf(3);
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
  Terms terms = TermsOf(4);
  terms.Take({.closed = {3}}, Terms::Found{{{1, 2, 3, 0}, {}}, {}}, rig.gang, {});
  terms.Lead(2, rig.gang);
  EXPECT_EQ(terms.Unheard(rig.gang), (Indexes{0, 1, 2})) << "that of 3 has gone, that is known";
  terms.Heard(0, rig.gang);
  EXPECT_EQ(terms.Unheard(rig.gang), (Indexes{0, 1, 2})) << "it has no link yet";
  rig.Join(0, gang::MemberState::kRunning, 1);
  EXPECT_EQ(terms.Unheard(rig.gang), (Indexes{1, 2}));
  terms.Refuses(2);
  EXPECT_EQ(terms.Unheard(rig.gang), (Indexes{1}));
}

TEST(Terms, WhoHasLeftIsAwayAndWhoIsLostIsNot) {
  Rig rig(3, 1);
  rig.Run();
  rig.Feed(gang::NodeLeft{0});
  rig.Feed(gang::NodeSilent{2, 0});
  EXPECT_EQ(Terms::Away(rig.gang), (Indexes{0}));
}

// A gang that runs, in a term with a quorum in which all nodes have been heard.
class TermsOfARunningGang : public ::testing::Test {
 protected:
  explicit TermsOfARunningGang(uint32_t nodes = 3) : TermsOfARunningGang(Rig::WithSpares(nodes, 1, 0, 1)) {}
  explicit TermsOfARunningGang(const gang::Settings& settings)
      : rig_(settings), terms_(TermsOf(settings.node_count)) {
    rig_.Run();
    terms_.Take({.promised = true, .taken_at = 1}, std::nullopt, rig_.gang, {});
    Begin();
    Follow();
  }

  void Begin() { terms_.Lead(++term_, rig_.gang); }
  // All that are there are heard.
  void Follow() {
    for (uint32_t node = 0; node < rig_.gang.nodes().size(); ++node) {
      if (rig_.gang.nodes()[node].present) terms_.Heard(node, rig_.gang);
    }
    terms_.SetQuorum(true);
  }
  void Lose(uint32_t node, lease::Nanos now) {
    terms_.Wait(now);
    rig_.Feed(gang::NodeSilent{node, 0});
  }
  void ComeBack(uint32_t node) {
    rig_.Join(node);
    terms_.Heard(node, rig_.gang);
  }
  void Raise(lease::Nanos now) {
    terms_.Next(rig_.gang);
    terms_.Raised(now, now, rig_.gang);
    Begin();
  }
  [[nodiscard]] std::optional<lease::Nanos> RaiseAt() const { return terms_.RaiseAt(rig_.gang); }
  [[nodiscard]] WitnessSet Witnesses() const { return terms_.lead().witnesses; }

  Rig rig_;
  Terms terms_;
  uint64_t term_ = 0;
};

class TermsOfTwo : public TermsOfARunningGang {
 protected:
  TermsOfTwo() : TermsOfARunningGang(2) {}
};

class TermsOfSeventeen : public TermsOfARunningGang {
 protected:
  TermsOfSeventeen() : TermsOfARunningGang(17) {}
};

TEST_F(TermsOfARunningGang, NothingIsRaisedWhileAllWitnessesAreThere) {
  EXPECT_EQ(RaiseAt(), std::nullopt);
}

TEST_F(TermsOfARunningGang, ALostWitnessIsReplacedOnceAndAWhileAfterItsLoss) {
  Lose(2, 100);
  EXPECT_EQ(RaiseAt(), 100 + kAfterLoss);
  Raise(200);
  EXPECT_EQ(Witnesses(), (WitnessSet{1, 0}));
  EXPECT_EQ(terms_.sets().former, (std::vector<Set>{{1, 2, 0}}));
  Follow();
  EXPECT_EQ(RaiseAt(), std::nullopt) << "the set is as it should be";
}

TEST_F(TermsOfARunningGang, NodesThatDieTogetherAreFoundInTheSameTerm) {
  Lose(2, 100);
  Lose(0, 100 + kAfterLoss / 2);
  EXPECT_EQ(RaiseAt(), 100 + kAfterLoss / 2 + kAfterLoss);
  Raise(200);
  EXPECT_EQ(Witnesses(), WitnessSet{1});
}

TEST_F(TermsOfARunningGang, ASetIsNotChangedBeforeItHasAQuorumAndAllFollow) {
  Lose(2, 100);
  terms_.SetQuorum(false);
  EXPECT_EQ(RaiseAt(), std::nullopt);
  terms_.SetQuorum(true);
  EXPECT_TRUE(RaiseAt());
  Raise(200);
  Lose(0, 300);
  terms_.SetQuorum(true);
  EXPECT_EQ(RaiseAt(), std::nullopt) << "its own node has not been heard in this term";
  terms_.Heard(kSelf, rig_.gang);
  EXPECT_TRUE(RaiseAt()) << "the lost ones are not waited for";
}

TEST_F(TermsOfTwo, WhoIsLeftIsEnough) {
  Lose(0, 100);
  ASSERT_TRUE(RaiseAt());
  Raise(200);
  EXPECT_EQ(Witnesses(), WitnessSet{1});
  Follow();
  EXPECT_EQ(RaiseAt(), std::nullopt);
}

TEST_F(TermsOfARunningGang, ANodeThatIsBackIsAWitnessAgainOnceItIsHeard) {
  Lose(2, 100);
  Raise(200);
  Follow();
  rig_.Join(2);
  EXPECT_EQ(RaiseAt(), std::nullopt) << "it has not been heard";
  terms_.Heard(2, rig_.gang);
  EXPECT_EQ(RaiseAt(), 100 + kAfterLoss) << "at once";
  Raise(300);
  EXPECT_EQ(Witnesses(), (WitnessSet{1, 2, 0}));
}

TEST_F(TermsOfARunningGang, ASetDoesNotGrowByANodeThatIsAwayAgain) {
  Lose(2, 100);
  Raise(200);
  Follow();
  ComeBack(2);
  rig_.Feed(gang::NodeLeft{2});
  EXPECT_EQ(RaiseAt(), std::nullopt);
  Lose(0, 300);
  Raise(400);
  EXPECT_EQ(Witnesses(), WitnessSet{1}) << "one that was a witness, and is away, stays one";
}

// Its musterd ends again behind its first beat in this term: then the port refuses, and its supervisors run on for `reconnect`.
TEST_F(TermsOfARunningGang, ANodeThatWasAwayWhenTheTermBeganIsProbedOnceItHasBeaten) {
  rig_.Feed(gang::NodeLeft{2});
  Lose(0, 100);
  Raise(200);
  ASSERT_TRUE(terms_.lead().closed.Contains(2));
  EXPECT_EQ(terms_.Unheard(rig_.gang), Indexes{1});
  terms_.Heard(2, rig_.gang);
  EXPECT_EQ(terms_.Unheard(rig_.gang), (Indexes{1, 2}));
}

TEST_F(TermsOfARunningGang, OfANodeThatComesAndGoesTheSetGrowsOnceInAWhile) {
  Lose(2, 100);
  Raise(200);
  Follow();
  ComeBack(2);
  Raise(300);
  Follow();
  Lose(2, 400);
  EXPECT_EQ(RaiseAt(), 400 + kAfterLoss);
  Raise(500);
  Follow();
  ComeBack(2);
  EXPECT_EQ(RaiseAt(), 300 + kToGrow);
}

TEST_F(TermsOfSeventeen, ACandidateThatIsBackIsNotWantedWhereNoWitnessIsMissing) {
  ASSERT_EQ(Witnesses().size(), lease::kMaxWitnesses);
  Lose(2, 100);
  Raise(200);
  EXPECT_EQ(Witnesses().size(), lease::kMaxWitnesses);
  EXPECT_FALSE(Witnesses().Contains(2));
  EXPECT_TRUE(Witnesses().Contains(16)) << "the next one has taken its place";
  Follow();
  ComeBack(2);
  EXPECT_EQ(RaiseAt(), std::nullopt);
}

TEST_F(TermsOfARunningGang, TheNextTermHasTheWitnessesThatItsRecordNames) {
  Lose(2, 100);
  const Set named = terms_.Next(rig_.gang).witnesses;
  Lose(0, 150);
  terms_.Raised(200, 200, rig_.gang);
  EXPECT_EQ(terms_.sets().witnesses, named);
  EXPECT_EQ(named, (Set{1, 0}));
}

TEST_F(TermsOfARunningGang, ANodeWhoseProgramsHaveEndedWellIsNotLost) {
  rig_.Exit(2, 0);
  EXPECT_EQ(RaiseAt(), std::nullopt);
  rig_.Feed(gang::NodeLeft{2});
  EXPECT_EQ(RaiseAt(), std::nullopt);
}

TEST_F(TermsOfARunningGang, NothingIsRaisedWhenTheGangIsOver) {
  Lose(2, 100);
  for (const uint32_t node : {0, 1}) rig_.Stopped(node);
  rig_.ExecuteAll();
  EXPECT_TRUE(RaiseAt());
  for (const uint32_t task : {0, 1}) rig_.Exit(task, 0);
  ASSERT_EQ(rig_.gang.state(), gang::State::kFinished);
  EXPECT_EQ(RaiseAt(), std::nullopt);
}

TEST(Terms, AWitnessThatHasNotJoinedIsReplacedWhenTheGangStartsWithoutItAndComesBackWhenItDoes) {
  Rig rig(Rig::WithSpares(3, 1, 0, 2));
  Terms terms = TermsOf(3);
  terms.Take({.promised = true}, std::nullopt, rig.gang, {});
  terms.Lead(1, rig.gang);
  for (const uint32_t node : {0, 1}) {
    rig.Join(node);
    terms.Heard(node, rig.gang);
  }
  terms.SetQuorum(true);
  EXPECT_EQ(terms.RaiseAt(rig.gang), std::nullopt) << "it may still come";
  rig.Feed(gang::TimerFired{gang::Timer::kJoin});
  EXPECT_TRUE(terms.RaiseAt(rig.gang));
  EXPECT_EQ(terms.Next(rig.gang).witnesses, (Set{1, 0}));
  terms.Raised(10, 10, rig.gang);
  terms.Lead(2, rig.gang);
  for (const uint32_t node : {0, 1}) terms.Heard(node, rig.gang);
  terms.SetQuorum(true);
  EXPECT_EQ(terms.RaiseAt(rig.gang), std::nullopt);
  rig.Join(2);
  terms.Heard(2, rig.gang);
  EXPECT_TRUE(terms.RaiseAt(rig.gang));
}

TEST(Terms, ASickNodeThatHasNeverJoinedIsNotWaitedFor) {
  Rig rig(Rig::WithSpares(4, 1, 0, 1));
  Terms terms = TermsOf(4);
  terms.Take({.promised = true}, std::nullopt, rig.gang, {});
  terms.Lead(1, rig.gang);
  rig.Feed(gang::NodeSick{3, "it has no disk"});
  for (const uint32_t node : {0, 1, 2}) {
    rig.Join(node);
    terms.Heard(node, rig.gang);
  }
  ASSERT_EQ(rig.gang.state(), gang::State::kStarting);
  terms.SetQuorum(true);
  rig.Feed(gang::NodeSilent{2, 0});
  EXPECT_TRUE(terms.RaiseAt(rig.gang));
}

// It has the job's script, and the others begin without it.
TEST(Terms, ABatchHostThatHasLeftForGoodIsNotWaitedFor) {
  Rig rig(Rig::WithSpares(4, 1, 0, 1));
  Terms terms = TermsOf(4);
  terms.Take({.promised = true}, std::nullopt, rig.gang, {});
  terms.Lead(1, rig.gang);
  rig.Feed(gang::JobFacts{.batch_node = 0});
  rig.Join(0);
  rig.LoseSupervisor(0);
  rig.Feed(gang::NodeLeft{0});
  for (const uint32_t node : {1, 2, 3}) {
    rig.Join(node);
    terms.Heard(node, rig.gang);
  }
  ASSERT_EQ(rig.gang.state(), gang::State::kStarting);
  terms.SetQuorum(true);
  ASSERT_TRUE(terms.RaiseAt(rig.gang));
  EXPECT_EQ(terms.Next(rig.gang).witnesses, (Set{1, 2, 3}));
}

// A spare whose supervisors have been ended from outside: it has left, and nothing of it is heard any more.
TEST(Terms, ANodeThatHasLeftForGoodIsReplacedOnce) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Run();
  Terms terms = TermsOf(3);
  terms.Take({.promised = true}, std::nullopt, rig.gang, {});
  terms.Lead(1, rig.gang);
  for (const uint32_t node : {0, 1, 2}) terms.Heard(node, rig.gang);
  terms.SetQuorum(true);
  rig.LoseSupervisor(2);
  EXPECT_EQ(terms.RaiseAt(rig.gang), std::nullopt);
  rig.Feed(gang::NodeLeft{2});
  ASSERT_TRUE(terms.RaiseAt(rig.gang));
  EXPECT_EQ(terms.Next(rig.gang).witnesses, (Set{1, 0}));
  terms.Raised(10, 10, rig.gang);
  terms.Lead(2, rig.gang);
  for (const uint32_t node : {0, 1}) terms.Heard(node, rig.gang);
  terms.SetQuorum(true);
  EXPECT_EQ(terms.RaiseAt(rig.gang), std::nullopt);
}

}  // namespace
}  // namespace muster
