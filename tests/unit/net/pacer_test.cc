// How writes of a measurement follow each other.
#include "net/preflight/pacer.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace muster::preflight {
namespace {

using Clock = Pacer::Clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint64_t kMessage = 65'536;
constexpr Clock::time_point kBegan{std::chrono::hours(1)};

// How many writes are due at once.
int Burst(Pacer& pacer, Clock::time_point now, int most) {
  int posted = 0;
  for (; pacer.Due(now) && posted < most; ++posted) pacer.Posted(now);
  return posted;
}

TEST(Pacer, WithoutARateAWriteIsAlwaysDue) {
  Pacer pacer(kBegan, kMessage, 0, 4'096);
  EXPECT_EQ(pacer.gap(), nanoseconds(0));
  EXPECT_EQ(Burst(pacer, kBegan, 1'000), 1'000);
}

TEST(Pacer, TheGapHasThePacketsHeadersToo) {
  // 64 packets of 1,024 bytes, with 82 more each.
  Pacer slow(kBegan, kMessage, 1'000'000 / 8, 1'024);
  EXPECT_EQ(slow.gap(), nanoseconds(566'272'000));
  EXPECT_EQ(Burst(slow, kBegan, 9), 1);
  EXPECT_FALSE(slow.Due(kBegan + slow.gap() - nanoseconds(1)));
  EXPECT_EQ(Burst(slow, kBegan + slow.gap(), 9), 1);
  // 16 packets of 4,096 bytes.
  EXPECT_EQ(Pacer(kBegan, kMessage, 400'000'000'000 / 8, 4'096).gap(), nanoseconds(1'336));
}

TEST(Pacer, ASenderThatLooksSeldomReachesItsRate) {
  Pacer pacer(kBegan, kMessage, 400'000'000'000 / 8, 4'096);
  int posted = 0;
  for (auto now = kBegan; now < kBegan + milliseconds(10); now += nanoseconds(50'000))
    posted += Burst(pacer, now, 1'000);
  EXPECT_NEAR(posted, 1e7 / 1'336, 40);
}

TEST(Pacer, AfterAStallNoMoreThanAMillisecondIsMadeUp) {
  Pacer pacer(kBegan, kMessage, 400'000'000'000 / 8, 4'096);
  EXPECT_EQ(Burst(pacer, kBegan + milliseconds(500), 100'000), 1'000'000 / 1'336 + 1);
}

TEST(NextPair, IdlePairsTakeTurns) {
  const std::array<uint32_t, 4> idle{};
  size_t pair = 0;
  std::vector<size_t> used;
  for (int i = 0; i < 8; ++i) used.push_back(pair = NextPair(idle, pair));
  EXPECT_EQ(used, (std::vector<size_t>{1, 2, 3, 0, 1, 2, 3, 0}));
}

TEST(NextPair, APairWithFewerWritesUnderWayComesFirst) {
  EXPECT_EQ(NextPair(std::array<uint32_t, 4>{2, 2, 2, 1}, 3), 3U);
  EXPECT_EQ(NextPair(std::array<uint32_t, 4>{0, 1, 1, 0}, 0), 3U);
  EXPECT_EQ(NextPair(std::array<uint32_t, 1>{4}, 0), 0U);
}

}  // namespace
}  // namespace muster::preflight
