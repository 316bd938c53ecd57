#include "daemon/gang_job/recent_steps.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(RecentSteps, AreThoseThatWereAdded) {
  RecentSteps steps;
  EXPECT_EQ(steps.Highest(), std::nullopt);
  EXPECT_TRUE(steps.Add(7));
  EXPECT_TRUE(steps.Add(0));
  EXPECT_FALSE(steps.Add(7));
  EXPECT_TRUE(steps.Has(0));
  EXPECT_FALSE(steps.Has(1));
  EXPECT_EQ(steps.Highest(), 7U);
  steps.Remove(7);
  EXPECT_EQ(steps.Highest(), 0U);
  EXPECT_TRUE(steps.Add(7));
  steps.Clear();
  EXPECT_FALSE(steps.Has(7));
}

TEST(RecentSteps, TheLowestOfTooManyIsForgottenAndWhatIsLowerCannotBeAdded) {
  RecentSteps steps;
  for (uint64_t i = 0; i <= RecentSteps::kKept; ++i) EXPECT_TRUE(steps.Add(10 + 2 * i));
  EXPECT_FALSE(steps.Has(10));
  EXPECT_TRUE(steps.Has(12));
  EXPECT_FALSE(steps.Add(10));
  EXPECT_FALSE(steps.Add(9));
  EXPECT_TRUE(steps.Add(11));  // and is the lowest of too many itself
  EXPECT_FALSE(steps.Has(11));
  EXPECT_FALSE(steps.Add(11));
  EXPECT_TRUE(steps.Has(12));
  steps.Clear();
  EXPECT_TRUE(steps.Add(9));
}

}  // namespace
}  // namespace muster
