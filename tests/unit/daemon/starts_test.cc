#include "daemon/coordinator/starts.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "daemon/coordinator/record_fence.h"

namespace muster {
namespace {

using Nodes = std::set<uint32_t>;

class StartsTest : public ::testing::Test {
 protected:
  StartsTest() { fence_.Take({1, 1}); }
  RecordFence fence_;
  Starts starts_;
};

TEST_F(StartsTest, AGenerationStartsFromTheNewestCheckpointAndKeepsIt) {
  starts_.SetNewest(10);
  EXPECT_TRUE(starts_.Prepare(2, 1).anew);
  EXPECT_EQ(starts_.from(), 10U);
  starts_.Committed(12);
  starts_.Committed(11);
  EXPECT_EQ(starts_.newest(), 12U);
  EXPECT_FALSE(starts_.Prepare(2, 1).anew) << "a node that asks again gets the same";
  const auto next_term = starts_.Prepare(2, 2);
  EXPECT_TRUE(next_term.anew);
  EXPECT_TRUE(next_term.again);
  EXPECT_EQ(starts_.from(), 10U);
  EXPECT_FALSE(starts_.Prepare(3, 2).again);
  EXPECT_EQ(starts_.from(), 12U);
}

TEST_F(StartsTest, WhatACoordinatorBeforeHasStartedKeepsWhatItStartedFrom) {
  starts_.SetNewest(20);
  starts_.Inherit(5, 8);
  starts_.Inherit(5, 9);
  starts_.Inherit(0, 1);
  EXPECT_TRUE(starts_.Prepare(5, 1).inherited);
  EXPECT_EQ(starts_.from(), 8U) << "the first word counts";
  starts_.Inherit(6, 3);
  EXPECT_FALSE(starts_.Prepare(6, 1).inherited) << "this coordinator has started one itself";
  EXPECT_EQ(starts_.from(), 20U);
}

TEST_F(StartsTest, WithoutACheckpointItStartsFromTheBeginning) {
  starts_.Prepare(1, 1);
  EXPECT_EQ(starts_.from(), std::nullopt);
}

TEST_F(StartsTest, NodesAreToldOnceAndNobodyAfterAStop) {
  starts_.Order({1, 2}, false);
  starts_.Order({2, 3}, false);
  EXPECT_EQ(starts_.Due(fence_, 1), (Nodes{1, 2, 3}));
  EXPECT_EQ(starts_.Due(fence_, 1), Nodes{});
  starts_.Order({1}, false);
  starts_.Stop();
  EXPECT_EQ(starts_.Due(fence_, 1), Nodes{});
}

TEST_F(StartsTest, AStartBehindItsRecordWaitsForItAndSoDoWhoComesLater) {
  starts_.Order({1}, true);
  EXPECT_EQ(starts_.Due(fence_, 2), Nodes{});
  starts_.Order({2}, false);
  EXPECT_EQ(starts_.Due(fence_, 2), Nodes{});
  fence_.Durable(2);
  EXPECT_EQ(starts_.Due(fence_, 2), (Nodes{1, 2}));
  starts_.Order({3}, false);
  EXPECT_EQ(starts_.Due(fence_, 3), Nodes{3}) << "the next one does not wait";
}

TEST_F(StartsTest, NothingStartsBeforeABadCheckpointIsMarkedAndNothingFromItAgain) {
  starts_.Order({1}, false);
  starts_.Reject("10.a");
  starts_.Reject("9.a");
  EXPECT_FALSE(starts_.MayPrepare());
  EXPECT_EQ(starts_.Due(fence_, 1), Nodes{});
  starts_.RejectOver(9);
  EXPECT_EQ(starts_.Due(fence_, 1), Nodes{}) << "there are two";
  starts_.RejectOver(8);
  EXPECT_EQ(starts_.newest(), 8U);
  EXPECT_TRUE(starts_.MayPrepare());
  EXPECT_EQ(starts_.Due(fence_, 1), Nodes{1});
  EXPECT_TRUE(starts_.IsRejected("10.a"));
  EXPECT_FALSE(starts_.IsRejected("10.b"));
}

TEST_F(StartsTest, WhatIsCommittedWhileAnotherIsMarkedBadIsNotForgotten) {
  starts_.SetNewest(10);
  starts_.Committed(11);
  starts_.Reject("10.a");
  starts_.Committed(12);
  starts_.RejectOver(9);  // as the store was before that commit
  EXPECT_EQ(starts_.newest(), 12U);
  starts_.Reject("12.a");
  starts_.RejectOver(9);
  EXPECT_EQ(starts_.newest(), 9U) << "it was committed before that";
}

}  // namespace
}  // namespace muster
