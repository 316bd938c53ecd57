#include "daemon/lease/coordinator_lease.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace muster::lease {
namespace {

constexpr Nanos Milliseconds(int64_t ms) {
  return ms * kMillisecond;
}

class CoordinatorLeaseTest : public ::testing::Test {
 protected:
  LeadSettings SettingsFor(size_t nodes, uint64_t term = 1) const {
    LeadSettings settings;
    settings.gang = 7;
    settings.term = term;
    settings.self = 0;
    settings.nodes = nodes;
    settings.witnesses = WitnessSet::FirstOf(nodes);
    return settings;
  }
  void Make(const LeadSettings& settings) {
    nodes_ = settings.nodes;
    term_ = settings.term;
    stamps_.assign(nodes_, 0);
    lead_.emplace(settings, now_);
  }
  void MakeFirst(size_t nodes) {
    Make(SettingsFor(nodes));
    for (size_t i = 0; i < nodes; ++i) lead_->NodeAttached(static_cast<NodeIndex>(i), now_);
  }
  // The term after those of its own whose witnesses were `former`. n2 is lost.
  void MakeRaised(std::map<NodeIndex, uint32_t> heard_before, std::vector<WitnessSet> former = {{0, 1, 2}}) {
    LeadSettings settings = SettingsFor(3, former.size() + 1);
    settings.inherited = true;
    settings.asked_at = settings.taken_at = now_;
    settings.witnesses = {0, 1};
    settings.former = std::move(former);
    settings.watched = {0, 1};
    settings.heard_before = std::move(heard_before);
    Make(settings);
  }
  void MakeSuccessor(size_t nodes, bool promised) {
    LeadSettings settings = SettingsFor(nodes, 2);
    settings.inherited = true;
    settings.promised = promised;
    settings.asked_at = settings.taken_at = now_;
    for (size_t i = 0; i < nodes; ++i) settings.watched.push_back(static_cast<NodeIndex>(i));
    Make(settings);
  }
  // The ack's stamp is what the node's next beat shows.
  void Beat(NodeIndex node, uint8_t flags = 0, uint64_t stopped = 0) {
    Datagram beat;
    beat.type = Type::kBeat;
    beat.flags = flags;
    beat.gang = 7;
    beat.term = term_;
    beat.sequence = ++sequence_;
    beat.from = node;
    beat.echo = static_cast<uint64_t>(stamps_[node]);
    beat.generation = stopped;
    Receive(beat);
  }
  void Receive(const Datagram& datagram) {
    lead_->Receive(datagram, now_, &out_);
    for (const Send& send : out_.sends) {
      if (send.datagram.type == Type::kAck) {
        stamps_[send.to] = send.datagram.sent;
        granted_ = (send.datagram.flags & kGranted) != 0;
      }
      if (send.datagram.type == Type::kLead) announced_.insert(send.to);
    }
    out_.sends.clear();
  }
  // Time passes, and these nodes beat every 100 ms.
  void Until(Nanos end, const std::vector<NodeIndex>& beating) {
    while (now_ < end) {
      now_ += Milliseconds(50);
      if (now_ % Milliseconds(100) == 0) {
        for (const NodeIndex node : beating) Beat(node);
      }
      lead_->Tick(now_, &out_);
      for (const Send& send : out_.sends) announced_.insert(send.to);
      out_.sends.clear();
    }
  }
  bool Silent(NodeIndex node) const {
    return std::any_of(out_.events.begin(), out_.events.end(),
                       [node](const Event& e) { return e.kind == EventKind::kSilent && e.node == node; });
  }
  bool Has(EventKind kind) const {
    return std::any_of(out_.events.begin(), out_.events.end(),
                       [kind](const Event& e) { return e.kind == kind; });
  }

  Nanos now_ = Milliseconds(100'000);
  size_t nodes_ = 0;
  uint64_t term_ = 1;
  uint64_t sequence_ = 0;
  bool granted_ = false;
  std::vector<Nanos> stamps_;
  std::set<NodeIndex> announced_;
  std::optional<CoordinatorLease> lead_;
  Output out_;
};

TEST_F(CoordinatorLeaseTest, ItGrantsOnceAMajorityHasShownItsStamp) {
  MakeFirst(3);
  Beat(0);
  Beat(1);
  EXPECT_FALSE(granted_);
  Beat(0);
  EXPECT_FALSE(granted_);
  Beat(1);
  EXPECT_TRUE(granted_);
  EXPECT_TRUE(Has(EventKind::kQuorum));
}

TEST_F(CoordinatorLeaseTest, OneNodeIsItsOwnMajority) {
  MakeFirst(1);
  Beat(0);
  Beat(0);
  EXPECT_TRUE(granted_);
}

TEST_F(CoordinatorLeaseTest, ANodeThatStopsIsSilentAfterTheSilenceAndNotBefore) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  const Nanos last = now_;
  Until(last + Milliseconds(1'150), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(last + Milliseconds(1'250), {0, 1});
  EXPECT_TRUE(Silent(2));
  Beat(2);
  EXPECT_TRUE(Has(EventKind::kHeard));
}

// An order from before it was silent may reach it now, and its place may have been given to another.
TEST_F(CoordinatorLeaseTest, ANodeThatWasSilentIsGrantedNothingUntilItIsAttachedAgain) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  Until(now_ + Milliseconds(1'300), {0, 1});
  ASSERT_TRUE(Silent(2));
  Until(now_ + Milliseconds(1'000), {0, 1, 2});
  Beat(2);
  EXPECT_FALSE(granted_);
  lead_->NodeAttached(2, now_);
  Beat(2);
  EXPECT_TRUE(granted_);
}

TEST_F(CoordinatorLeaseTest, WithoutAMajorityThatBeatsAfterwardsNobodyIsSilentAndNobodyIsGranted) {
  MakeFirst(5);
  Until(now_ + Milliseconds(2'000), {0, 1, 2, 3, 4});
  Until(now_ + Milliseconds(30'000), {0, 1});
  EXPECT_FALSE(Has(EventKind::kSilent));
  EXPECT_TRUE(Has(EventKind::kLostQuorum));
  Beat(0);
  EXPECT_FALSE(granted_);
}

TEST_F(CoordinatorLeaseTest, BeatsThatWereSentEarlyAndComeLateProveNothing) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  const auto old = stamps_;
  const Nanos last = now_;
  // Nodes 0 and 1 are heard, but what they show is from before.
  while (now_ < last + Milliseconds(5'000)) {
    Until(now_ + Milliseconds(100), {});
    stamps_ = old;
    Beat(0);
    stamps_ = old;
    Beat(1);
  }
  EXPECT_FALSE(Has(EventKind::kSilent));
  EXPECT_FALSE(granted_);
}

TEST_F(CoordinatorLeaseTest, OfTwoNodesTheStoresWordAfterTheLeaseIsNeeded) {
  MakeFirst(2);
  Until(now_ + Milliseconds(2'000), {0, 1});
  const Nanos last = now_;
  Until(last + Milliseconds(3'000), {0});
  EXPECT_FALSE(Silent(1));
  EXPECT_TRUE(Has(EventKind::kConfirmInStore));
  lead_->StoreConfirmed(last + Milliseconds(700), now_, &out_);
  EXPECT_FALSE(Silent(1)) << "asked before the other's lease had ended";
  lead_->StoreConfirmed(now_, now_, &out_);
  EXPECT_TRUE(Silent(1));
  Beat(0);
  EXPECT_TRUE(granted_) << "the store is a quorum for one lease";
  Until(now_ + Milliseconds(1'000), {0});
  Beat(0);
  EXPECT_FALSE(granted_);
}

TEST_F(CoordinatorLeaseTest, TheStoresWordAloneIsNothingWhereTheOthersCouldBeAMajority) {
  MakeFirst(5);
  Until(now_ + Milliseconds(2'000), {0, 1, 2, 3, 4});
  Until(now_ + Milliseconds(5'000), {0, 1});
  lead_->StoreConfirmed(now_, now_, &out_);
  EXPECT_FALSE(Has(EventKind::kSilent));
}

TEST_F(CoordinatorLeaseTest, AfterItsOwnPauseNodesGetAWholeSilenceAgain) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  now_ += Milliseconds(5'000);
  lead_->Tick(now_, &out_);
  EXPECT_TRUE(Has(EventKind::kLostQuorum)) << "its own quorum has run out meanwhile";
  const Nanos awake = now_;
  Until(awake + Milliseconds(1'100), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(awake + Milliseconds(2'000), {0, 1});
  EXPECT_TRUE(Silent(2));
}

TEST_F(CoordinatorLeaseTest, ANodeWhoseMusterdHasGoneHasTheReconnectTime) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  lead_->NodeClosed(2, now_);
  const Nanos closed = now_;
  Until(closed + Milliseconds(30'300), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(closed + Milliseconds(30'500), {0, 1});
  EXPECT_TRUE(Silent(2));
}

TEST_F(CoordinatorLeaseTest, AReturnedMusterdCountsOnceItsBeatsAreFromAfterItsReturn) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  lead_->NodeClosed(2, now_);
  now_ += Milliseconds(50);
  lead_->NodeAttached(2, now_);
  Beat(2);  // an old one that was on its way, by its stamp
  Until(now_ + Milliseconds(5'000), {0, 1});
  EXPECT_FALSE(Silent(2)) << "its supervisors may run on without it";
  Beat(2, kOnGrace);
  Beat(2, kOnGrace);
  Until(now_ + Milliseconds(5'000), {0, 1});
  EXPECT_FALSE(Silent(2)) << "its members run on their grace";
  Beat(2);
  Until(now_ + Milliseconds(1'300), {0, 1});
  EXPECT_TRUE(Silent(2));
}

TEST_F(CoordinatorLeaseTest, ARemovedNodeIsNotWatchedAndNotAcked) {
  MakeFirst(3);
  Until(now_ + Milliseconds(2'000), {0, 1, 2});
  lead_->NodeRemoved(2);
  stamps_[2] = 1;
  Beat(2);
  EXPECT_EQ(stamps_[2], 1);
  Until(now_ + Milliseconds(5'000), {0, 1});
  EXPECT_FALSE(Silent(2));
}

TEST_F(CoordinatorLeaseTest, ASuccessorWaitsForWhatTheOldCoordinatorMayHaveAcked) {
  MakeSuccessor(3, true);
  const Nanos taken = now_;
  Until(taken + Milliseconds(1'900), {0, 1});
  EXPECT_FALSE(Silent(2));
  EXPECT_TRUE(announced_.contains(2));
  Until(taken + Milliseconds(2'100), {0, 1});
  EXPECT_TRUE(Silent(2)) << "two leases, and the margin between lease and silence";
}

TEST_F(CoordinatorLeaseTest, WithoutThePromisesItWaitsFromTheirFirstBeatsOn) {
  MakeSuccessor(3, false);
  Until(now_ + Milliseconds(5'000), {0});
  const Nanos came = now_;
  Until(came + Milliseconds(1'900), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(came + Milliseconds(2'200), {0, 1});
  EXPECT_TRUE(Silent(2));
}

TEST_F(CoordinatorLeaseTest, UntilTheOldWitnessesHaveComeNobodyIsSilent) {
  LeadSettings settings = SettingsFor(5, 2);
  settings.inherited = true;
  settings.asked_at = settings.taken_at = now_;
  settings.witnesses = {0, 1, 2};
  settings.former = {{2, 3, 4}};
  settings.watched = {0, 1, 2, 3, 4};
  Make(settings);
  Until(now_ + Milliseconds(10'000), {0, 1});
  EXPECT_FALSE(Has(EventKind::kSilent));
  EXPECT_FALSE(lead_->Settled());
  Until(now_ + Milliseconds(3'000), {0, 1, 2, 3});
  EXPECT_TRUE(Silent(4));
  EXPECT_TRUE(lead_->Settled());
}

// Its own term before has lost a witness, which the new one does without, and then one that has not been heard in the new one: together
// they could still be a majority of the old set.
TEST_F(CoordinatorLeaseTest, AWitnessThatDiesWithTheRaiseOfATermIsSilentWhenVotesCannotCarryItAnyMore) {
  MakeRaised({{0, 1}, {1, 1}});
  const Nanos began = now_;
  Until(began + Milliseconds(30'700), {0});
  lead_->StoreConfirmed(now_, now_, &out_);
  Until(began + Milliseconds(31'300), {0});
  EXPECT_FALSE(Silent(1)) << "the store was asked too early";
  lead_->StoreConfirmed(now_, now_, &out_);
  EXPECT_TRUE(Silent(1));
}

// It may have learnt of the term between from the record, so votes of both terms may have carried it, of one after the other.
TEST_F(CoordinatorLeaseTest, AWitnessThatHasMissedTwoTermsIsSilentWhenVotesOfBothCannotCarryItAnyMore) {
  MakeRaised({{0, 1}, {1, 2}}, {{0, 1, 2}, {0, 1}});
  const Nanos began = now_;
  Until(began + Milliseconds(60'700), {0});
  lead_->StoreConfirmed(now_, now_, &out_);
  Until(began + Milliseconds(61'300), {0});
  EXPECT_FALSE(Silent(1)) << "the store was asked too early";
  lead_->StoreConfirmed(now_, now_, &out_);
  EXPECT_TRUE(Silent(1));
}

TEST_F(CoordinatorLeaseTest, ANodeThatWasNotHeardInTheTermBeforeIsWaitedForUntilTheOldWitnessesHaveCome) {
  MakeRaised({{0, 1}});
  Until(now_ + Milliseconds(60'000), {0});
  lead_->StoreConfirmed(now_, now_, &out_);
  EXPECT_FALSE(Silent(1));
}

TEST_F(CoordinatorLeaseTest, ANodeWhoseMusterdHadGoneBeforeTheTakeOverKeepsItsTime) {
  LeadSettings settings = SettingsFor(3, 2);
  settings.inherited = settings.promised = true;
  settings.asked_at = settings.taken_at = now_;
  settings.watched = {0, 1, 2};
  settings.closed = {2};
  Make(settings);
  const Nanos taken = now_;
  Until(taken + Milliseconds(30'000), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(taken + Milliseconds(31'000), {0, 1});
  EXPECT_TRUE(Silent(2));
}

TEST_F(CoordinatorLeaseTest, WhereNobodySawWhoseMusterdWentAllKeepThatTime) {
  LeadSettings settings = SettingsFor(3, 2);
  settings.inherited = settings.returned = true;
  settings.asked_at = settings.taken_at = now_;
  settings.watched = {0, 1, 2};
  Make(settings);
  const Nanos taken = now_;
  Until(taken + Milliseconds(31'000), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(taken + Milliseconds(32'000), {0});
  EXPECT_TRUE(Silent(2));
  EXPECT_FALSE(Silent(1));
  lead_->NodeAttached(1, now_);
  Beat(1);
  Beat(1);
  Until(now_ + Milliseconds(1'500), {0, 2});
  EXPECT_TRUE(Silent(1)) << "who has beaten is silent as soon as ever";
}

// Should its musterd go again nobody sees the end of a link.
TEST_F(CoordinatorLeaseTest, ANodeThatBeatsBeforeItHasALinkKeepsTheTimeOfOneWhoseMusterdHasGone) {
  MakeSuccessor(3, true);
  Until(now_ + Milliseconds(1'000), {0, 1, 2});
  const Nanos gone = now_;
  lead_->NodeAttached(1, now_);
  Until(gone + Milliseconds(31'000), {0, 1});
  EXPECT_FALSE(Silent(2));
  Until(gone + Milliseconds(31'500), {0, 1});
  EXPECT_TRUE(Silent(2));
}

// A musterd that goes again before it has a link comes back with the coordinator that it knew before, which is dead.
TEST_F(CoordinatorLeaseTest, ANodeThatHasBeatenAndIsNotHeardAnyMoreIsToldAgainWhoCoordinates) {
  MakeSuccessor(3, true);
  Until(now_ + Milliseconds(8'000), {0, 1, 2});
  announced_.clear();
  Until(now_ + Milliseconds(1'100), {0, 1});
  EXPECT_FALSE(announced_.contains(2)) << "some of its beats may have been lost";
  Until(now_ + Milliseconds(1'300), {0, 1});
  EXPECT_TRUE(announced_.contains(2));
  EXPECT_FALSE(announced_.contains(1));
  Beat(2);
  announced_.clear();
  Until(now_ + Milliseconds(1'100), {0, 1, 2});
  EXPECT_FALSE(announced_.contains(2)) << "it follows again";
}

TEST_F(CoordinatorLeaseTest, ANodeThatHasBeatenIsToldOfTheTermNoMoreWhenItIsSilent) {
  MakeSuccessor(3, true);
  for (const NodeIndex node : {0, 1, 2}) lead_->NodeAttached(node, now_);
  Until(now_ + Milliseconds(8'000), {0, 1, 2});
  Until(now_ + Milliseconds(1'300), {0, 1});
  ASSERT_TRUE(Silent(2));
  announced_.clear();
  Until(now_ + Milliseconds(5'000), {0, 1});
  EXPECT_FALSE(announced_.contains(2));
}

TEST_F(CoordinatorLeaseTest, HalfABeatPassesBetweenItsAnnouncements) {
  MakeSuccessor(3, true);
  Until(now_ + Milliseconds(50), {});
  ASSERT_TRUE(announced_.contains(2));
  announced_.clear();
  Until(now_ + Milliseconds(50), {});
  EXPECT_TRUE(announced_.empty());
  Until(now_ + Milliseconds(50), {});
  EXPECT_TRUE(announced_.contains(2));
}

TEST_F(CoordinatorLeaseTest, AHigherTermDeposesItAndALowerOneIsToldOfIt) {
  MakeSuccessor(3, true);
  Datagram old;
  old.type = Type::kBeat;
  old.gang = 7;
  old.term = 1;
  old.from = 2;
  Receive(old);
  EXPECT_TRUE(announced_.contains(2));
  old.term = 3;
  Receive(old);
  EXPECT_TRUE(Has(EventKind::kDeposed));
  granted_ = true;
  const Nanos stamp = stamps_[1];
  Beat(1);
  EXPECT_EQ(stamps_[1], stamp) << "it answers nobody any more";
}

TEST_F(CoordinatorLeaseTest, APromiseAgainstItsTermAsksForANewOneAgainAndAgain) {
  MakeFirst(3);
  Datagram spent;
  spent.type = Type::kSpent;
  spent.gang = 7;
  spent.term = 1;
  spent.from = 2;
  for (int i = 0; i < 30; ++i) {
    now_ += Milliseconds(100);
    Receive(spent);
  }
  const auto count = std::count_if(out_.events.begin(), out_.events.end(),
                                   [](const Event& e) { return e.kind == EventKind::kTermSpent; });
  EXPECT_EQ(count, 3);
}

TEST_F(CoordinatorLeaseTest, DuplicatesAreAnsweredAndCountOnce) {
  MakeFirst(1);
  Beat(0);
  Beat(0, 0, 3);
  Datagram again;
  again.type = Type::kBeat;
  again.gang = 7;
  again.term = 1;
  again.sequence = sequence_;
  again.from = 0;
  again.generation = 9;
  stamps_[0] = 0;
  Receive(again);
  EXPECT_NE(stamps_[0], 0) << "the answer to the first may have been lost on its way";
  const auto stopped = std::count_if(out_.events.begin(), out_.events.end(),
                                     [](const Event& e) { return e.kind == EventKind::kStopped; });
  EXPECT_EQ(stopped, 1);
}

}  // namespace
}  // namespace muster::lease
