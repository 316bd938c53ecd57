#include "daemon/coordinator/record_fence.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

namespace muster {
namespace {

TEST(RecordFence, AGenerationRaisesTheFenceOnceAndATermLeavesItsGeneration) {
  RecordFence fence;
  fence.Take({3, 7});
  EXPECT_EQ(fence.durable(), 7U);
  const auto first = fence.Write(8);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->from, (Fence{3, 7}));
  EXPECT_EQ(first->to, (Fence{3, 8}));
  const auto second = fence.Write(8);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->from, second->to);
  EXPECT_EQ(fence.durable(), 7U);
  EXPECT_TRUE(fence.Durable(8));
  EXPECT_FALSE(fence.Durable(8)) << "it is no news";
  EXPECT_FALSE(fence.Durable(7));
  EXPECT_EQ(fence.durable(), 8U);
}

TEST(RecordFence, WhatIsToBeWrittenWhileTheTermIsRaisedIsOwed) {
  RecordFence fence;
  fence.Take({1, 1});
  const auto raise = fence.Raise();
  ASSERT_TRUE(raise);
  EXPECT_EQ(raise->to, (Fence{2, 1}));
  EXPECT_FALSE(fence.Raise()) << "one at a time";
  EXPECT_FALSE(fence.Write(2));
  EXPECT_EQ(fence.fence(), (Fence{1, 1})) << "it has not begun";
  const auto over = fence.RaiseOver(true);
  EXPECT_TRUE(over.begun);
  EXPECT_TRUE(over.owed);
  EXPECT_FALSE(over.overtaken);
  EXPECT_EQ(fence.fence(), (Fence{2, 1}));
  EXPECT_FALSE(fence.RaiseOver(false).owed) << "it is owed once";
}

TEST(RecordFence, ATermThatIsSeenWhileOneIsRaisedMayBeItsOwn) {
  RecordFence fence;
  fence.Take({4, 2});
  EXPECT_FALSE(fence.Seen(4));
  EXPECT_FALSE(fence.Seen(3));
  ASSERT_TRUE(fence.Raise());
  EXPECT_FALSE(fence.Seen(5));
  EXPECT_FALSE(fence.RaiseOver(true).overtaken) << "it was";
  ASSERT_TRUE(fence.Raise());
  EXPECT_FALSE(fence.Seen(6));
  EXPECT_TRUE(fence.RaiseOver(false).overtaken) << "it was not";
  EXPECT_EQ(fence.Newer(), "term 6 has begun");
  EXPECT_TRUE(fence.Seen(7));
  EXPECT_EQ(fence.Newer(), "term 7 has begun");
}

TEST(RecordFence, ATermAfterTheOneThatWasRaisedIsAnothers) {
  RecordFence fence;
  fence.Take({4, 2});
  ASSERT_TRUE(fence.Raise());
  EXPECT_FALSE(fence.Seen(6));
  EXPECT_TRUE(fence.RaiseOver(true).overtaken);
}

TEST(RecordFence, AWriteThatWasRefusedIsMadeAgainWhenTheFenceHasMoved) {
  RecordFence fence;
  fence.Take({1, 1});
  const Fence used = fence.fence();
  EXPECT_FALSE(fence.Moved(used)) << "whose is the record?";
  ASSERT_TRUE(fence.Write(2));
  EXPECT_TRUE(fence.Moved(used));
  EXPECT_FALSE(fence.Moved(fence.fence()));
  ASSERT_TRUE(fence.Raise());
  EXPECT_TRUE(fence.Moved(fence.fence())) << "the new term may be in the store";
}

TEST(RecordFence, WhoseItIsIsAskedOnceAndNeverOfALostOne) {
  RecordFence fence;
  EXPECT_TRUE(fence.AskWhose());
  EXPECT_FALSE(fence.AskWhose());
  RecordFence lost;
  lost.Lose();
  EXPECT_FALSE(lost.AskWhose());
  EXPECT_FALSE(lost.Raise());
  EXPECT_TRUE(lost.lost());
}

TEST(RecordFence, WhoWritesLearnsThatItIsOfNoUseAlsoWhenTheCoordinatorHasGone) {
  std::function<bool()> mine;
  {
    RecordFence fence;
    mine = fence.Mine();
    EXPECT_TRUE(mine());
  }
  EXPECT_FALSE(mine());
}

}  // namespace
}  // namespace muster
