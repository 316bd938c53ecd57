#include "daemon/base/backtrace.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

namespace muster {
namespace {

using ::testing::KilledBySignal;

// Each test in a process of its own: what a process does with signals stays.
class BacktraceTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(BacktraceTest, ACrashSaysItsSignalAndItsStackAndIsOneAllTheSame) {
  const std::map<int, std::string> signals = {
      {SIGSEGV, "SEGV"}, {SIGBUS, "BUS"}, {SIGFPE, "FPE"}, {SIGILL, "ILL"}};
  for (const auto& [number, name] : signals) {
    EXPECT_EXIT(
        {
          TraceCrashes("a program");
          ::raise(number);
        },
        KilledBySignal(number), "a program has crashed: SIG" + name + "\n.*base_test.*\\[0x");
  }
}

TEST_F(BacktraceTest, SoDoesAnAbortOfAnyThread) {
  EXPECT_EXIT(
      {
        TraceCrashes("a program");
        std::thread([] { std::abort(); }).join();
      },
      KilledBySignal(SIGABRT), "a program has crashed: SIGABRT\n.*base_test.*\\[0x");
}

TEST_F(BacktraceTest, AnotherThreadAsksWhereTheMainThreadStandsAndItGoesOn) {
  EXPECT_EXIT(
      {
        const auto trace = TraceMainThread();
        std::thread(trace).join();
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "base_test.*\\[0x");
}

}  // namespace
}  // namespace muster
