// What the coordinator makes of a node that it does not hear: how long it waits, and what comes after.
#include <gtest/gtest.h>

#include "tests/unit/daemon/beat_rig.h"

namespace muster {
namespace {

constexpr uint32_t kSilentNode = BeatNet::kNodes - 1;  // that something happens to

using LeaseSilence = BeatRig;

TEST_F(LeaseSilence, TheOthersGoOnOnlyAfterItAndNotBeforeTheRecordSaysSo) {
  RunFirst();
  CutOff(kSilentNode);
  AdvanceUntil("the others are stopped", 2 * times_.silence, [&] { return HasStop(kBatch); });
  EXPECT_TRUE(Lost(kSilentNode));
  EXPECT_GE(net_->now() - net_->last_beat(kSilentNode), times_.silence);
  HoldRecord();
  ExpectStopAndStop(1, {kBatch, kCoordinator});
  ASSERT_TRUE(Eventually([&] { return RecordIn(kCoordinator)->generation == 2 && RecordWaits(); }));
  Advance(times_.silence);
  for (const uint32_t node : {kBatch, kCoordinator}) EXPECT_FALSE(HasStart(node)) << "node " << node;
  EXPECT_EQ(InStore().fence.generation, 1U);
  ReleaseRecord();
  ASSERT_TRUE(Eventually([&] { return HasStart(kBatch); }));
  EXPECT_EQ(InStore().fence.generation, 2U);
  ExpectStart(2, {kBatch, kCoordinator});
}

TEST_F(LeaseSilence, AMusterdThatHasEndedIsWaitedForForReconnectAndNotForSilence) {
  RunFirst();
  EndDaemon(kSilentNode);
  ASSERT_TRUE(Eventually([&] { return Noted(kCoordinator, "node_away"); }));
  Advance(times_.reconnect);
  EXPECT_FALSE(Lost(kSilentNode));
  EXPECT_FALSE(HasStop(kBatch));
  AdvanceUntil("the node is lost", 2 * times_.silence, [&] { return Lost(kSilentNode); });
  EXPECT_TRUE(HasStop(kBatch));
}

TEST_F(LeaseSilence, AMusterdThatIsBackWithinReconnectKeepsItsMembers) {
  RunFirst();
  EndDaemon(kSilentNode);
  ASSERT_TRUE(Eventually([&] { return Noted(kCoordinator, "node_away"); }));
  Advance(times_.reconnect - times_.silence);
  StartDaemon(kSilentNode);
  ASSERT_TRUE(members_[kSilentNode].Rejoin(daemons_[kSilentNode]->socket(), wire::MemberState::kRunning, 1));
  ASSERT_TRUE(InTime([&] { return KnownIn(kSilentNode).heard; }));
  Advance(times_.reconnect + 2 * times_.silence);
  for (uint32_t node = 0; node < kNodes; ++node) {
    EXPECT_FALSE(HasStop(node)) << "node " << node;
    EXPECT_FALSE(Lost(node)) << "node " << node;
  }
  EXPECT_EQ(RecordIn(kCoordinator)->generation, 1U);
}

}  // namespace
}  // namespace muster
