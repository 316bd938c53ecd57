#include "daemon/lease/agent_lease.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace muster::lease {
namespace {

constexpr Nanos Ms(int64_t ms) {
  return ms * kMillisecond;
}

// Node 1 of a gang that node 0 leads; the rest of the world is this test.
class AgentLeaseTest : public ::testing::Test {
 protected:
  void Make(size_t nodes, uint64_t promised = 0, Nanos grace = 0) {
    AgentSettings settings;
    settings.gang = 7;
    settings.self = 1;
    settings.promised = promised;
    settings.grace_until = grace;
    for (size_t i = 0; i < nodes; ++i) settings.candidates.push_back(static_cast<NodeIndex>(i));
    witnesses_ = WitnessSet::FirstOf(nodes);
    agent_.emplace(settings);
  }
  void Attended(size_t nodes) {
    Make(nodes);
    ASSERT_TRUE(agent_->Follow(1, 0, witnesses_, Source::kLink, now_, &out_));
    Tick();
    Ack(LastBeat());
    ASSERT_TRUE(Has(EventKind::kAttended));
    out_.Clear();
  }
  void Tick() { agent_->Tick(now_, &out_); }
  void Receive(Datagram d) {
    d.gang = 7;
    agent_->Receive(d, now_, &out_);
  }
  // Steps of 10 ms, `each` before every tick.
  template <typename Each>
  void Until(Nanos end, Each each) {
    while (now_ < end) {
      now_ += Ms(10);
      each();
      Tick();
    }
  }
  void Until(Nanos end) {
    Until(end, [] {});
  }
  std::optional<Datagram> Last(Type type) const {
    for (auto send = out_.sends.rbegin(); send != out_.sends.rend(); ++send) {
      if (send->datagram.type == type) return send->datagram;
    }
    return std::nullopt;
  }
  Datagram LastBeat() const { return *Last(Type::kBeat); }
  void Ack(const Datagram& beat, uint8_t flags = kGranted, uint64_t stop = 0) {
    Datagram ack;
    ack.type = Type::kAck;
    ack.flags = flags;
    ack.term = beat.term;
    ack.from = beat.coordinator;
    ack.to = 1;
    ack.sent = now_ + Ms(50'000);
    ack.echo = beat.sequence;
    ack.generation = stop;
    Receive(ack);
  }
  void Vote(NodeIndex from, Nanos asked) {
    Datagram vote;
    vote.type = Type::kVote;
    vote.term = agent_->term();
    vote.from = from;
    vote.echo = static_cast<uint64_t>(asked);
    Receive(vote);
  }
  void Announce(uint64_t term, NodeIndex node) {
    Datagram lead;
    lead.type = Type::kLead;
    lead.term = term;
    lead.from = lead.coordinator = node;
    lead.witnesses = witnesses_;
    Receive(lead);
  }
  void Question(NodeIndex from, uint64_t term) {
    Datagram ask;
    ask.type = Type::kAsk;
    ask.term = term;
    ask.from = from;
    ask.sent = 4711;
    ask.coordinator = 0;
    ask.witnesses = witnesses_;
    Receive(ask);
  }
  size_t Count(EventKind kind) const {
    return static_cast<size_t>(std::count_if(out_.events.begin(), out_.events.end(),
                                             [kind](const Event& e) { return e.kind == kind; }));
  }
  bool Has(EventKind kind) const { return Count(kind) > 0; }

  Nanos now_ = Ms(100'000);
  WitnessSet witnesses_;
  std::optional<AgentLease> agent_;
  Output out_;
};

TEST_F(AgentLeaseTest, NothingMayRunBeforeTheFirstAcknowledgement) {
  Make(3);
  EXPECT_FALSE(agent_->MayRun(now_));
  ASSERT_TRUE(agent_->Follow(1, 0, witnesses_, Source::kLink, now_, &out_));
  Until(now_ + Ms(5'000));
  EXPECT_FALSE(agent_->MayRun(now_));
  EXPECT_FALSE(Has(EventKind::kFence)) << "there is nothing to fence";
  EXPECT_EQ(agent_->promised(), 0U) << "a coordinator that waits for its first majority is not dead";
}

TEST_F(AgentLeaseTest, ItFencesOnceOneLeaseAfterTheSendTimeOfTheLastAckedBeat) {
  Attended(3);
  const Nanos sent = now_;
  Until(sent + Ms(790));
  EXPECT_FALSE(Has(EventKind::kFence));
  EXPECT_TRUE(agent_->MayRun(now_));
  Until(sent + Ms(3'000));
  EXPECT_EQ(Count(EventKind::kFence), 1U);
  EXPECT_FALSE(agent_->MayRun(now_));
}

TEST_F(AgentLeaseTest, AnAckThatIsLateRenewsFromTheBeatsSendTime) {
  Attended(3);
  Until(now_ + Ms(200));
  const Datagram beat = LastBeat();
  const Nanos sent = beat.sent;
  Until(sent + Ms(500));
  Ack(beat);
  EXPECT_EQ(agent_->RunUntil(), sent + Ms(800));
}

TEST_F(AgentLeaseTest, AnAckOfABeatThatWasNeverSentOrWithoutQuorumRenewsNothing) {
  Attended(3);
  const Nanos until = agent_->RunUntil();
  Until(now_ + Ms(300));
  Datagram beat = LastBeat();
  Ack(beat, 0);
  EXPECT_EQ(agent_->RunUntil(), until);
  beat.sequence += 1'000'000;
  Ack(beat);
  EXPECT_EQ(agent_->RunUntil(), until);
}

TEST_F(AgentLeaseTest, AnAckOfAnOlderBeatThatComesLateTakesNothingBack) {
  Attended(3);
  Until(now_ + Ms(200));
  const Datagram older = LastBeat();
  Until(now_ + Ms(200));
  Ack(LastBeat());
  const Nanos until = agent_->RunUntil();
  Ack(older);
  EXPECT_EQ(agent_->RunUntil(), until);
}

TEST_F(AgentLeaseTest, AnAckOfALowerTermIsIgnored) {
  Attended(3);
  Until(now_ + Ms(200));
  const Datagram old = LastBeat();
  const Nanos until = agent_->RunUntil();
  Announce(2, 2);
  out_.Clear();
  Ack(old, kGranted, 9);
  EXPECT_EQ(agent_->RunUntil(), until);
  EXPECT_TRUE(out_.events.empty());
}

TEST_F(AgentLeaseTest, AfterAFenceAnAckLetsMembersRunAgain) {
  Attended(3);
  Until(now_ + Ms(1'000));
  ASSERT_TRUE(Has(EventKind::kFence));
  out_.Clear();
  Until(now_ + Ms(300));
  Ack(LastBeat());
  EXPECT_TRUE(Has(EventKind::kAttended));
  EXPECT_FALSE(agent_->MayRun(now_)) << "what was to be killed may still run";
  EXPECT_FALSE(agent_->MayBeatSupervisors(now_));
  agent_->Fenced();
  EXPECT_TRUE(agent_->MayRun(now_));
  EXPECT_TRUE(agent_->MayBeatSupervisors(now_));
}

TEST_F(AgentLeaseTest, OrdersToStopAreSurfacedWhenTheyRise) {
  Attended(3);
  Until(now_ + Ms(200));
  Ack(LastBeat(), kGranted, 4);
  Ack(LastBeat(), 0, 3);
  Ack(LastBeat(), 0, 6);
  ASSERT_EQ(Count(EventKind::kStopOrdered), 2U);
  EXPECT_EQ(out_.events.back().generation, 6U);
}

// A coordinator that takes over may know of fewer generations than the one before had ordered to be stopped.
TEST_F(AgentLeaseTest, WhatWasStoppedInAnEarlierTermSaysNothingInTheNext) {
  Attended(3);
  agent_->SetStopped(5);
  now_ += Ms(200);
  Tick();
  EXPECT_EQ(LastBeat().generation, 5U);
  ASSERT_TRUE(agent_->Follow(2, 2, witnesses_, Source::kLink, now_, &out_));
  Tick();
  EXPECT_EQ(LastBeat().term, 2U);
  EXPECT_EQ(LastBeat().generation, 0U);
}

TEST_F(AgentLeaseTest, WhatWasOrderedToStopInAnEarlierTermHidesNoOrderOfTheNext) {
  Attended(3);
  Until(now_ + Ms(200));
  Ack(LastBeat(), kGranted, 9);
  ASSERT_TRUE(agent_->Follow(2, 2, witnesses_, Source::kLink, now_, &out_));
  Tick();
  const Datagram beat = LastBeat();
  out_.Clear();
  Ack(beat, kGranted, 4);
  EXPECT_EQ(Count(EventKind::kStopOrdered), 1U);
}

TEST_F(AgentLeaseTest, AnAnnouncementOfAnEarlierTermIsNotFollowed) {
  Attended(3);
  ASSERT_TRUE(agent_->Follow(2, 2, witnesses_, Source::kLink, now_, &out_));
  out_.Clear();
  Announce(1, 0);
  EXPECT_FALSE(Has(EventKind::kSuccessor));
}

TEST_F(AgentLeaseTest, AnAnnouncementOfTheTermThatItFollowsChangesNothing) {
  Attended(3);
  Announce(1, 0);
  EXPECT_TRUE(out_.events.empty());
  EXPECT_TRUE(out_.sends.empty());
}

TEST_F(AgentLeaseTest, WithoutAcksItSendsBeatsThroughPeersAndPeersCarryThemOn) {
  Attended(5);
  Until(now_ + Ms(500));
  const auto through = [this](NodeIndex peer) {
    return std::any_of(out_.sends.begin(), out_.sends.end(), [peer](const Send& s) {
      return s.to == peer && s.datagram.type == Type::kBeat && s.datagram.to == 0;
    });
  };
  EXPECT_TRUE(through(2) || through(3) || through(4));

  Attended(5);
  Datagram beat;
  beat.type = Type::kBeat;
  beat.term = 1;
  beat.from = 3;
  beat.to = 0;
  Receive(beat);
  ASSERT_FALSE(out_.sends.empty());
  EXPECT_EQ(out_.sends.back().to, 0);
  EXPECT_TRUE(out_.sends.back().forward);
  Datagram ack;
  ack.type = Type::kAck;
  ack.term = 1;
  ack.from = 0;
  ack.to = 3;
  Receive(ack);
  EXPECT_EQ(out_.sends.back().to, 3);
  EXPECT_TRUE(out_.sends.back().forward);
}

TEST_F(AgentLeaseTest, ANodeThatIsAckedDoesNotVote) {
  Attended(3);
  Question(2, 1);
  EXPECT_FALSE(Last(Type::kVote));
  EXPECT_EQ(agent_->promised(), 0U);
}

TEST_F(AgentLeaseTest, AVoteIsAPromiseNeverToBeatOrRelayInThatTermAgain) {
  Attended(5);
  Until(now_ + Ms(450));
  Question(2, 1);
  ASSERT_TRUE(Last(Type::kVote));
  EXPECT_EQ(Last(Type::kVote)->echo, 4711U);
  EXPECT_EQ(agent_->promised(), 1U);
  out_.Clear();
  Until(now_ + Ms(5'000), [this] {
    Datagram beat;
    beat.type = Type::kBeat;
    beat.term = 1;
    beat.from = 3;
    Receive(beat);
  });
  EXPECT_FALSE(Last(Type::kBeat));
  ASSERT_TRUE(Last(Type::kSpent)) << "the coordinator, if it lives, must know";
}

TEST_F(AgentLeaseTest, APromiseOfAnEarlierProcessHolds) {
  Make(3, 4);
  EXPECT_FALSE(agent_->Follow(3, 0, witnesses_, Source::kLink, now_, &out_));
  EXPECT_TRUE(agent_->Follow(4, 0, witnesses_, Source::kLink, now_, &out_));
  Until(now_ + Ms(1'000));
  EXPECT_FALSE(Last(Type::kBeat));
  EXPECT_TRUE(Last(Type::kSpent));
  EXPECT_TRUE(agent_->Follow(5, 0, witnesses_, Source::kLink, now_, &out_));
  Tick();
  EXPECT_TRUE(Last(Type::kBeat));
}

TEST_F(AgentLeaseTest, ComingToATermIsAPromiseAgainstThoseBelow) {
  Attended(3);
  Announce(5, 2);
  EXPECT_EQ(agent_->promised(), 4U);
  EXPECT_EQ(agent_->term(), 5U);
  EXPECT_TRUE(Has(EventKind::kSuccessor));
  EXPECT_EQ(LastBeat().term, 5U);
  EXPECT_FALSE(agent_->Follow(3, 0, witnesses_, Source::kLink, now_, &out_));
}

// A coordinator that no node hears, but that reaches the store, has raised its term there.
TEST_F(AgentLeaseTest, WhomItHasAbandonedItDoubtsInTheNextTermTooIfTheRecordAloneNamesThatTerm) {
  Attended(5);
  const auto votes = [this] {
    if (const auto ask = Last(Type::kAsk)) {
      Vote(2, ask->sent);
      Vote(3, ask->sent);
    }
  };
  Until(now_ + Ms(2'000), votes);
  ASSERT_EQ(Count(EventKind::kAbandoned), 1U);
  out_.Clear();
  ASSERT_TRUE(agent_->Follow(2, 0, witnesses_, Source::kRecord, now_, &out_));
  Tick();
  ASSERT_TRUE(Last(Type::kAsk));
  EXPECT_EQ(Last(Type::kAsk)->term, 2U);
  Until(now_ + Ms(2'000), votes);
  EXPECT_TRUE(Has(EventKind::kAbandoned));
  EXPECT_TRUE(Has(EventKind::kTakeOver));
  EXPECT_FALSE(Has(EventKind::kFence));
}

TEST_F(AgentLeaseTest, WhoeverHearsOfThatTermByAnotherNodesQuestionVotesAtOnce) {
  Attended(5);
  Until(now_ + Ms(450));
  out_.Clear();
  Question(2, 2);
  EXPECT_EQ(agent_->term(), 2U);
  EXPECT_TRUE(Last(Type::kVote));
}

TEST_F(AgentLeaseTest, ACoordinatorThatAnnouncesItsNextTermItselfIsNotDoubtedInThatTerm) {
  Attended(5);
  Until(now_ + Ms(450));
  Announce(2, 0);
  out_.Clear();
  Question(2, 2);
  EXPECT_FALSE(Last(Type::kVote));
}

TEST_F(AgentLeaseTest, AnotherCoordinatorIsNotDoubtedInItsTermThoughTheOneBeforeWas) {
  Attended(5);
  Until(now_ + Ms(450));
  ASSERT_TRUE(agent_->Follow(2, 2, witnesses_, Source::kRecord, now_, &out_));
  out_.Clear();
  Question(3, 2);
  EXPECT_FALSE(Last(Type::kVote));
}

TEST_F(AgentLeaseTest, WithAMajorityItDoesNotFenceWhileTheyAnswer) {
  Attended(5);
  Until(now_ + Ms(6'000), [this] {
    if (const auto ask = Last(Type::kAsk)) {
      Vote(2, ask->sent);
      Vote(3, ask->sent);
    }
  });
  EXPECT_TRUE(Has(EventKind::kAbandoned));
  EXPECT_FALSE(Has(EventKind::kFence));
  EXPECT_TRUE(Has(EventKind::kTakeOver));
  out_.Clear();
  Until(now_ + Ms(1'000));
  EXPECT_TRUE(Has(EventKind::kFence)) << "nobody answers any more";
}

TEST_F(AgentLeaseTest, WithoutAMajorityItFences) {
  Attended(5);
  Until(now_ + Ms(2'000), [this] {
    if (const auto ask = Last(Type::kAsk)) Vote(2, ask->sent);
  });
  EXPECT_FALSE(Has(EventKind::kAbandoned));
  EXPECT_TRUE(Has(EventKind::kFence));
}

TEST_F(AgentLeaseTest, WithoutASuccessorItGivesUpAfterTheReconnectTime) {
  Attended(3);
  const Nanos begin = now_;
  Until(begin + Ms(29'000), [this] {
    if (const auto ask = Last(Type::kAsk)) Vote(2, ask->sent);
    out_.sends.clear();
  });
  EXPECT_FALSE(Has(EventKind::kFence));
  EXPECT_GT(Count(EventKind::kTakeOver), 5U) << "the owner is asked again";
  Until(begin + Ms(32'000), [this] {
    if (const auto ask = Last(Type::kAsk)) Vote(2, ask->sent);
    out_.sends.clear();
  });
  EXPECT_TRUE(Has(EventKind::kFence));
}

TEST_F(AgentLeaseTest, TheFirstCandidateThatLivesTakesOverAtOnceALaterOneWaits) {
  const auto taken = [this](NodeIndex living) {
    Attended(5);
    AgentSettings settings;
    settings.gang = 7;
    settings.self = 1;
    settings.candidates = {0, 4, 1};
    agent_.emplace(settings);
    agent_->Follow(1, 0, witnesses_, Source::kLink, now_, &out_);
    Tick();
    Ack(LastBeat());
    out_.Clear();
    const Nanos begin = now_;
    while (!Has(EventKind::kTakeOver) && now_ < begin + Ms(5'000)) {
      Until(now_ + Ms(10));
      if (const auto ask = Last(Type::kAsk)) {
        Vote(living, ask->sent);
        Vote(3, ask->sent);
      }
    }
    return now_ - begin;
  };
  EXPECT_LT(taken(2), Ms(700));
  EXPECT_GT(taken(4), Ms(900));
}

TEST_F(AgentLeaseTest, OfTwoNodesTheOneWithoutCoordinatorClaimsOnceItHasPromised) {
  Attended(2);
  const Nanos begin = now_;
  Until(begin + Ms(600));
  ASSERT_EQ(Count(EventKind::kClaim), 1U);
  EXPECT_EQ(agent_->promised(), 1U);
  agent_->Claimed(1, true, now_);
  Until(begin + Ms(1'300));
  EXPECT_FALSE(Has(EventKind::kFence));
  Until(begin + Ms(1'500));
  EXPECT_TRUE(Has(EventKind::kFence)) << "a claim is good for one lease: by then its own coordinator acks";
}

TEST_F(AgentLeaseTest, AClaimThatFailedOrIsTooLateChangesNothing) {
  Attended(2);
  const Nanos begin = now_;
  Until(begin + Ms(600));
  agent_->Claimed(1, false, now_);
  Until(begin + Ms(900));
  EXPECT_TRUE(Has(EventKind::kFence));
  agent_->Claimed(1, true, now_);
  EXPECT_FALSE(agent_->MayRun(now_));
}

TEST_F(AgentLeaseTest, MembersOfARestartedMusterdRunOnUntilTheirGraceEndsOrTheFirstAck) {
  Make(3, 0, now_ + Ms(10'000));
  EXPECT_TRUE(agent_->MayRun(now_));
  ASSERT_TRUE(agent_->Follow(1, 0, witnesses_, Source::kLink, now_, &out_));
  Until(now_ + Ms(1'000));
  EXPECT_EQ(LastBeat().flags & kOnGrace, kOnGrace);
  EXPECT_FALSE(Has(EventKind::kFence));
  Ack(LastBeat());
  EXPECT_LT(agent_->RunUntil(), now_ + Ms(1'000));
  Until(now_ + Ms(1'000));
  EXPECT_TRUE(Has(EventKind::kFence));
}

TEST_F(AgentLeaseTest, SupervisorsAreBeatenOnlyWhileTheRightToRunIsFresh) {
  Attended(3);
  EXPECT_TRUE(agent_->MayBeatSupervisors(now_));
  EXPECT_TRUE(agent_->MayBeatSupervisors(now_ + Ms(300)));
  EXPECT_FALSE(agent_->MayBeatSupervisors(now_ + Ms(310)));
  Until(now_ + Ms(1'000));
  ASSERT_TRUE(Has(EventKind::kFence));
  EXPECT_FALSE(agent_->MayBeatSupervisors(now_)) << "the fence may not have been carried out";
  agent_->Fenced();
  EXPECT_TRUE(agent_->MayBeatSupervisors(now_)) << "nothing runs: they wait for the next generation";
}

TEST_F(AgentLeaseTest, APauseLongerThanTheLeaseEndsItWhateverComesFirst) {
  Attended(5);
  Until(now_ + Ms(450));
  const Nanos asked = now_;
  now_ += Ms(2'000);
  Vote(2, asked);
  Vote(3, asked);
  Ack(LastBeat());
  EXPECT_TRUE(Has(EventKind::kFence));
  EXPECT_FALSE(agent_->MayRun(now_));
}

}  // namespace
}  // namespace muster::lease
