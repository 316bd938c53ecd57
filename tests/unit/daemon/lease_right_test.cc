// A node's right to run members, from the beats to the supervisors: when they are started, and when they are killed.
#include <gtest/gtest.h>

#include <chrono>

#include "daemon/agent/local_gang.h"
#include "tests/support/virtual_clock.h"
#include "tests/unit/daemon/beat_rig.h"

namespace muster {
namespace {

constexpr int kExitSeven = 7 << 8;
constexpr uint32_t kNode = BeatNet::kNodes - 1;  // that something happens to

class LeaseRight : public BeatRig {
 protected:
  // What links say passes.
  void CutBeats(uint32_t node) {
    net_->SetFilter(
        [node](uint32_t from, uint32_t to, lease::Type /*type*/) { return from != node && to != node; });
  }
  void MendBeats() { net_->SetFilter({}); }

  // The next generation has begun on the others, and its Start waits on the link to `kNode`, where nothing runs.
  void HoldStartOfSecond() {
    RunFirst();
    members_[0].Exited(1, kExitSeven);
    ExpectStopAndStop(1, {1, 2});
    Settle();
    net_->HoldLinks(kCoordinator, kNode);
    ExpectStopAndStop(1, {0});
    ExpectStart(2, {0, 1});
  }

  AheadClock clock_;
};

TEST_F(LeaseRight, MembersAreStartedOnlyWhenTheirNodeHasBeenAcknowledged) {
  CutBeats(kNode);
  Join();
  ExpectStart(1, {0, 1});
  Settle();
  EXPECT_EQ(RecordIn(kCoordinator)->state, "starting");
  EXPECT_FALSE(HasStart(kNode));
  Advance(times_.lease);
  EXPECT_FALSE(HasStart(kNode));
  MendBeats();
  ExpectStart(1, {kNode});
}

// The time to join counts from a node's first task; the coordinator may take longer, and says so itself when it gives up.
TEST_F(LeaseRight, WhoHearsACoordinatorOutlastsTheTimeToJoin) {
  EndDaemon(kNode);
  StartDaemon(kNode, clock_);
  Join("spares=1,preflight=quick,join=1h");
  uint64_t test = 0;
  for (const uint32_t node : {0, 1}) {
    ASSERT_TRUE(InTime([&] { return members_[node].Has(wire::Type::kTestLinks); })) << "node " << node;
    test = members_[node].Next(wire::Type::kTestLinks)->As<wire::TestLinks>().test;
  }
  ASSERT_TRUE(InTime([&] { return KnownIn(kNode).heard; }));
  clock_.Move(std::chrono::hours(1) + kJoinMargin);
  Settle();
  EXPECT_FALSE(members_[kNode].Has(wire::Type::kRefused));
  members_[0].LinksTested(test, 0, R"({"findings": []})");
  ExpectStart(1, {0, 1});
  EXPECT_TRUE(members_[kNode].Silent(0));
}

TEST_F(LeaseRight, WhatWasToBeStartedWaitsUntilTheNodeIsAcknowledgedAgain) {
  HoldStartOfSecond();
  CutBeats(kNode);
  // It may still run something for so long, but a supervisor that were beaten for the last time now could outlive that.
  Advance(times_.lease - times_.beat);
  net_->ReleaseLinks(kCoordinator, kNode);
  Settle();
  EXPECT_FALSE(HasStart(kNode));
  MendBeats();
  ExpectStart(2, {kNode});
  Advance(times_.silence);
  EXPECT_FALSE(HasStop(kNode));
}

TEST_F(LeaseRight, ANodeThatIsCutOffKillsItsMembersWithinALeaseAndIsCalledSilentOnlyAfterThat) {
  RunFirst();
  CutOff(kNode);
  AdvanceUntil("the members are killed", times_.lease + kStep, [&] { return HasStop(kNode); });
  EXPECT_LE(net_->now() - net_->last_beat(kNode), times_.lease + kStep);
  EXPECT_FALSE(Lost(kNode));
  AdvanceUntil("the node is lost", times_.silence, [&] {
    const bool stopped = HasStop(kBatch);
    const bool lost = Lost(kNode);
    EXPECT_TRUE(lost || !stopped) << "the others are stopped before the node is lost";
    return lost;
  });
  EXPECT_GE(net_->now() - net_->last_beat(kNode), times_.silence);
}

TEST_F(LeaseRight, ANodeWhoseFenceIsOrderedStartsNothingBeforeItIsCarriedOut) {
  HoldStartOfSecond();
  HoldLoop(kNode);
  net_->ReleaseLinks(kCoordinator, kNode);
  // The Start is the first that the loop will find, and the fence comes behind it; before its turn the node is acknowledged
  // again.
  CutBeats(kNode);
  Advance(times_.lease);
  MendBeats();
  Advance(times_.beat);
  EXPECT_FALSE(Lost(kNode));
  ReleaseLoop(kNode);
  ExpectStart(2, {kNode});
  Advance(times_.silence);
  EXPECT_FALSE(HasStop(kNode)) << "what was started was killed by a fence that had been ordered before";
}

}  // namespace
}  // namespace muster
