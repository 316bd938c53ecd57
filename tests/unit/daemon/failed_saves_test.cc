#include "daemon/gang_job/failed_saves.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(FailedSaves, TheFirstReasonStays) {
  FailedSaves saves;
  EXPECT_EQ(saves.Find(0, 10), nullptr);
  EXPECT_TRUE(saves.Add(2, 10, "full"));
  EXPECT_FALSE(saves.Add(2, 10, "something else"));
  ASSERT_NE(saves.Find(2, 10), nullptr);
  EXPECT_EQ(*saves.Find(2, 10), "full");
  EXPECT_EQ(saves.Find(2, 11), nullptr);
}

TEST(FailedSaves, AreOfOneGeneration) {
  FailedSaves saves;
  saves.Add(2, 10, "full");
  EXPECT_FALSE(saves.Add(1, 11, "of an older one"));
  EXPECT_EQ(saves.saves().size(), 1U);
  EXPECT_EQ(saves.Find(3, 10), nullptr);
  EXPECT_TRUE(saves.Add(3, 11, "of a newer one"));
  EXPECT_EQ(saves.Find(2, 10), nullptr);
  EXPECT_NE(saves.Find(3, 11), nullptr);
  EXPECT_EQ(saves.generation(), 3U);
}

TEST(FailedSaves, DoNotGrowWithALongRun) {
  FailedSaves saves;
  const std::string text(10'000, 'x');
  for (uint64_t step = 0; step <= FailedSaves::kKept; ++step) saves.Add(1, step, text);
  EXPECT_EQ(saves.saves().size(), FailedSaves::kKept);
  EXPECT_EQ(saves.Find(1, 0), nullptr);
  ASSERT_NE(saves.Find(1, FailedSaves::kKept), nullptr);
  EXPECT_EQ(saves.Find(1, 1)->size(), FailedSaves::kMostText);
}

}  // namespace
}  // namespace muster
