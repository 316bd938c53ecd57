#include "daemon/coordinator/ending.h"

#include <gtest/gtest.h>

#include <set>

namespace muster {
namespace {

using Nodes = std::set<uint32_t>;
constexpr bool kFollowed = true;

TEST(Ending, ASuccessIsOneWhoeverSaysIt) {
  Ending ending;
  EXPECT_FALSE(ending.Finish(true, {1, 2})) << "nothing is waited for";
  EXPECT_EQ(ending.DueFinish(!kFollowed), (Nodes{1, 2}));
  EXPECT_EQ(ending.DueFinish(!kFollowed), Nodes{}) << "each is told once";
  ending.Finish(true, {3});
  EXPECT_EQ(ending.DueFinish(!kFollowed), Nodes{3}) << "who comes late";
}

TEST(Ending, ASuccessWhoseRecordIsNotOnItsWayWaitsForItThoughItIsSaidAgain) {
  Ending ending;
  EXPECT_TRUE(ending.Finish(false, {1}));
  EXPECT_FALSE(ending.Finish(true, {1, 2}));
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{});
  ending.Recorded(true, false);
  EXPECT_EQ(ending.DueFinish(kFollowed), (Nodes{1, 2}));
}

TEST(Ending, AGangIsGivenUpBehindItsRecord) {
  Ending ending;
  EXPECT_TRUE(ending.Finish(false, {1}));
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{});
  ending.Recorded(false, true);
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{}) << "that is another record";
  EXPECT_FALSE(ending.finished());
  ending.Recorded(true, false);
  EXPECT_EQ(ending.DueFinish(!kFollowed), Nodes{1});
  EXPECT_TRUE(ending.finished());
}

TEST(Ending, WithoutAnAnswerOfTheStoreMostOfTheGangWillDo) {
  Ending ending;
  ending.Finish(false, {1});
  EXPECT_TRUE(ending.WaitedLongEnough(false));
  EXPECT_EQ(ending.DueFinish(!kFollowed), Nodes{});
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{1});
}

TEST(Ending, AHostThatHasStoodStillWaitsOnceMoreForTheRecord) {
  Ending ending;
  ending.Finish(false, {1});
  EXPECT_FALSE(ending.WaitedLongEnough(true));
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{}) << "others may have gone on without it";
  EXPECT_TRUE(ending.WaitedLongEnough(false));
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{1});
}

TEST(Ending, AGangWhoseRequeueFailsWaitsForItsOwnRecord) {
  Ending ending;
  ending.Requeue();
  ending.Recorded(false, true);
  EXPECT_TRUE(ending.DueRequeue(kFollowed));
  EXPECT_TRUE(ending.WaitedLongEnough(false)) << "for the requeue's";
  EXPECT_TRUE(ending.Finish(false, {1}));
  EXPECT_EQ(ending.DueFinish(kFollowed), Nodes{});
  EXPECT_FALSE(ending.Finish(false, {2})) << "who comes late waits with the others";
  EXPECT_TRUE(ending.WaitedLongEnough(false));
  EXPECT_EQ(ending.DueFinish(kFollowed), (Nodes{1, 2}));
}

TEST(Ending, AJobIsRequeuedOnceBehindTheRecordThatSaysSo) {
  Ending ending;
  ending.Recorded(false, true);
  EXPECT_FALSE(ending.DueRequeue(kFollowed)) << "nobody has ordered it";
  ending.Requeue();
  EXPECT_TRUE(ending.DueRequeue(!kFollowed));
  EXPECT_FALSE(ending.DueRequeue(!kFollowed));
}

TEST(Ending, AJobIsRequeuedByMostOfTheGangAfterAWhile) {
  Ending ending;
  ending.Requeue();
  EXPECT_FALSE(ending.DueRequeue(kFollowed));
  EXPECT_TRUE(ending.WaitedLongEnough(false));
  EXPECT_FALSE(ending.DueRequeue(!kFollowed));
  EXPECT_TRUE(ending.DueRequeue(kFollowed));
}

}  // namespace
}  // namespace muster
