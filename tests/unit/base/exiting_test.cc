#include "base/exiting.h"

#include <gtest/gtest.h>

#include <string>

namespace muster {
namespace {

constexpr Exiting kLeft{.count = 2, .ticks = 100, .threads = 8, .pages = 1000};

TEST(ExitingTest, GoesOnWhenMemoryThreadsOrProcessesGoOrTheKernelWorksAFiftiethOfTheTime) {
  const auto goes_on = [](const Exiting& now) { return now.GoesOnFrom(kLeft, 1000); };
  const auto fiftieth = static_cast<uint64_t>(sysconf(_SC_CLK_TCK)) / 50;
  EXPECT_FALSE(goes_on(kLeft));
  EXPECT_TRUE(goes_on({.count = 1, .ticks = 100, .threads = 8, .pages = 1000}));
  EXPECT_TRUE(goes_on({.count = 2, .ticks = 100, .threads = 7, .pages = 1000}));
  EXPECT_TRUE(goes_on({.count = 2, .ticks = 100, .threads = 8, .pages = 999}));
  EXPECT_FALSE(goes_on({.count = 2, .ticks = 100 + fiftieth, .threads = 8, .pages = 1000}));
  EXPECT_TRUE(goes_on({.count = 2, .ticks = 101 + fiftieth, .threads = 8, .pages = 1000}));
}

TEST(ExitingTest, ReadsWhatTheKernelSaysOfAProcessWhateverItsName) {
  Exiting left;
  left.Add("7 (a) b) R 1 7 7 0 -1 4194560 95 0 0 0 12 34 0 0 20 0 3 0 100 4096 250 18446744073709551615 0 0");
  left.Add("8 (c) Z 1 8 8 0 -1 4194560 95 0 0 0 1 2 0 0 20 0 1 0 100 0 0 18446744073709551615 0 0");
  left.Add("");  // of a process that has gone
  EXPECT_EQ(left.count, 3);
  EXPECT_EQ(left.ticks, 49U);
  EXPECT_EQ(left.threads, 4U);
  EXPECT_EQ(left.pages, 250U);
}

TEST(ExitingTest, AThreadOnlyExitsWhenTheKernelSaysSo) {
  const auto says = [](const std::string& state, uint64_t flags) {
    return "7 (a) b) " + state + " 1 7 7 0 -1 " + std::to_string(flags) + " 95 0";
  };
  constexpr uint64_t kFlags = 0x400000;
  EXPECT_FALSE(OnlyExits(says("R", kFlags).c_str()));
  EXPECT_FALSE(OnlyExits(says("D", kFlags).c_str())) << "in a system call that SIGKILL does not end";
  EXPECT_TRUE(OnlyExits(says("D", kFlags | 0x4).c_str()));
  for (const char* state : {"Z", "X", "t"}) EXPECT_TRUE(OnlyExits(says(state, kFlags).c_str()));
  EXPECT_FALSE(OnlyExits("")) << "it could not be read";
}

TEST(ExitWatchTest, CallsStuckWhatDoesNotChangeForTheWholeTime) {
  ExitWatch watch;
  watch.Begin(5'000, 1'000);
  int64_t now = 5'000;
  for (; now < watch.stuck_at(); now += 10) {
    if (watch.LookDue(now)) watch.Look(kLeft, now);
  }
  EXPECT_EQ(now, 6'000);
}

TEST(ExitWatchTest, CountsAnewFromWhatHasGone) {
  ExitWatch watch;
  watch.Begin(0, 1'000);
  Exiting left = kLeft;
  int64_t now = 0;
  for (; now < watch.stuck_at(); now += 10) {
    if (now == 850) left.pages = 10;
    if (watch.LookDue(now)) watch.Look(left, now);
  }
  EXPECT_EQ(now, 1'900);
}

TEST(ExitWatchTest, EndsHoweverOftenItIsStartedAgain) {
  ExitWatch watch;
  watch.Begin(0, 1'000);
  int64_t now = 0;
  for (; now < watch.stuck_at() && now < 100'000; now += 10) {
    if (now % 900 == 0) watch.Restart(now);
    if (watch.LookDue(now)) watch.Look(kLeft, now);
  }
  EXPECT_GE(now, 5'000);
  EXPECT_LE(now, 6'000);
}

TEST(ExitWatchTest, WaitsFiveTimesAsLongAtMost) {
  ExitWatch watch;
  watch.Begin(0, 1'000);
  Exiting left{.count = 1, .ticks = 0, .threads = 1, .pages = 1'000'000'000};
  int64_t now = 0;
  for (; now < watch.stuck_at() && now < 100'000; now += 10) {
    --left.pages;
    if (watch.LookDue(now)) watch.Look(left, now);
  }
  EXPECT_GE(now, 5'000);
  EXPECT_LE(now, 6'000);
}

}  // namespace
}  // namespace muster
