#include "daemon/coordinator/warm_starts.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

WarmStarts::News News(uint32_t rank, uint64_t generation, WarmStarts::State state,
                      const std::string& text = "") {
  return {rank, generation, state, text};
}

TEST(WarmStarts, AnEventTellsOfAGenerationWhenAllOfItsMembersAreStarted) {
  WarmStarts starts;
  EXPECT_EQ(starts.Take(News(0, 2, WarmStarts::State::kWarm), 2), "");
  EXPECT_EQ(starts.Take(News(1, 2, WarmStarts::State::kWarm), 2), "2 of 2 members were started warm");
  EXPECT_EQ(starts.Take(News(0, 3, WarmStarts::State::kWarm), 2), "");
  EXPECT_EQ(starts.Take(News(1, 3, WarmStarts::State::kWarm), 2), "2 of 2 members were started warm");
}

TEST(WarmStarts, AReasonIsGivenOnceWithTheFirstRankThatHasIt) {
  WarmStarts starts;
  starts.Take(News(0, 2, WarmStarts::State::kWarm), 3);
  starts.Take(News(2, 2, WarmStarts::State::kCold, "it hangs"), 3);
  EXPECT_EQ(starts.Take(News(1, 2, WarmStarts::State::kCold, "it hangs"), 3),
            "1 of 3 members were started warm; cold: rank 1: it hangs");
}

TEST(WarmStarts, AProgramThatNeverFitsSaysSoOnce) {
  WarmStarts starts;
  EXPECT_NE(starts.Take(News(0, 2, WarmStarts::State::kCold, "no Python"), 1), "");
  EXPECT_EQ(starts.Take(News(0, 3, WarmStarts::State::kCold, "no Python"), 1), "");
  EXPECT_NE(starts.Take(News(0, 4, WarmStarts::State::kCold, "another reason"), 1), "");
}

TEST(WarmStarts, TheStatusHasTheStandbysOfTheNewestGeneration) {
  WarmStarts starts;
  EXPECT_EQ(starts.Text(2), "");
  starts.Take(News(0, 1, WarmStarts::State::kReady), 2);
  EXPECT_EQ(starts.Text(2), "1 of 2 standbys are ready");
  starts.Take(News(1, 1, WarmStarts::State::kUnfit, "an import fails"), 2);
  EXPECT_EQ(starts.Text(2), "1 of 2 standbys are ready; none for rank 1: an import fails");
  starts.Take(News(0, 2, WarmStarts::State::kWarm), 2);
  starts.Take(News(1, 1, WarmStarts::State::kReady), 2);  // of the one before: too late
  EXPECT_EQ(starts.Text(2), "0 of 2 standbys are ready; generation 2: 1 of 2 members were started warm");
}

}  // namespace
}  // namespace muster
