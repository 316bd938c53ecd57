#include "ceph/catalog/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ceph/catalog/catalog.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CheckpointInfo Good(uint64_t step, const std::string& pinned = "") {
  CheckpointInfo info;
  info.step = step;
  info.pinned = pinned;
  return info;
}
CheckpointInfo Bad(uint64_t step, const std::string& pinned = "") {
  CheckpointInfo info = Good(step, pinned);
  info.good = false;
  return info;
}

TEST(Retention, KeepsTheNewestGoodOnes) {
  EXPECT_THAT(StepsToLeave({Good(1), Good(2), Good(3), Good(4)}, 2), ElementsAre(1, 2));
  EXPECT_THAT(StepsToLeave({Good(1), Good(2)}, 2), IsEmpty());
  EXPECT_THAT(StepsToLeave({}, 2), IsEmpty());
}

TEST(Retention, KeepsAtLeastOne) {
  EXPECT_THAT(StepsToLeave({Good(1), Good(2)}, 0), ElementsAre(1));
}

TEST(Retention, BadOnesStayAsLongAsAnOlderGoodOneIsNeeded) {
  EXPECT_THAT(StepsToLeave({Bad(1), Good(2), Bad(3), Good(4), Bad(5)}, 2), ElementsAre(1));
  EXPECT_THAT(StepsToLeave({Bad(1), Good(2), Bad(3), Good(4), Bad(5)}, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(StepsToLeave({Bad(1), Bad(2), Bad(3)}, 1), IsEmpty());
}

TEST(Retention, KeepsGoodMultiples) {
  EXPECT_THAT(StepsToLeave({Good(0), Good(50), Good(100), Bad(200), Good(250), Good(300)}, {1, 100}),
              ElementsAre(50, 200, 250));
}

TEST(Retention, KeepsWhatAGangWouldStartFromNowAndWhatItRunsFrom) {
  const Retention one(1);
  EXPECT_THAT(
      StepsToLeave({Good(1), Bad(2), Good(3), Good(4), Good(5)}, one.KeepingAlso(2).KeepingAlso(4), 5),
      ElementsAre(1, 3));
  EXPECT_THAT(StepsToLeave({Good(1), Good(2), Good(3)}, one.KeepingAlso(2), 3), ElementsAre(1));
  EXPECT_THAT(StepsToLeave({Good(1), Good(2), Good(3)}, one.KeepingAlso(std::nullopt), 3), ElementsAre(1, 2));
}

TEST(Retention, KeepsWhatIsPinnedGoodOrBad) {
  EXPECT_THAT(StepsToLeave({Good(1), Good(2, "best"), Bad(3, "odd"), Good(4), Good(5)}, 1),
              ElementsAre(1, 4));
}

TEST(Retention, PinnedOnesCountAmongTheNewest) {
  EXPECT_THAT(StepsToLeave({Good(1), Good(2), Good(3, "best")}, 2), ElementsAre(1));
}

TEST(Retention, KeepsWhatHasJustBeenCommitted) {
  EXPECT_THAT(StepsToLeave({Good(1), Good(5), Good(6)}, 2, 1), IsEmpty());
  EXPECT_THAT(StepsToLeave({Good(1), Good(5), Good(6)}, 2, 5), ElementsAre(1));
}

TEST(Delete, IsRefusedForWhatIsNotThereOrPinned) {
  EXPECT_EQ(MayDelete({Good(1)}, 2, true).error().code, Errc::kNotFound);
  const Status pinned = MayDelete({Good(1, "best"), Good(2)}, 1, true);
  EXPECT_EQ(pinned.error().code, Errc::kConflict);
  EXPECT_THAT(pinned.error().message, HasSubstr("is pinned as 'best': unpin it first"));
}

TEST(Delete, LeavesARunningGangItsNewestTwo) {
  const std::vector<CheckpointInfo> list = {Bad(1), Good(2), Good(3), Bad(4), Good(5), Bad(6)};
  for (const uint64_t step : {3, 5}) {
    EXPECT_EQ(MayDelete(list, step, false).error().code, Errc::kConflict) << step;
    EXPECT_TRUE(MayDelete(list, step, true)) << step;
  }
  for (const uint64_t step : {1, 2, 4, 6}) EXPECT_TRUE(MayDelete(list, step, false)) << step;
  EXPECT_EQ(MayDelete({Good(1)}, 1, false).error().code, Errc::kConflict);
}

}  // namespace
}  // namespace muster
