#include "base/backtrace.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
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

// A program whose main thread waits for events, as musterd's does, and ends when it has been made to write where it stands.
// Asked again until it has: ThreadSanitizer may lose a signal that comes to a thread while it makes or joins another.
[[noreturn]] void WaitForATraceAndExit(int code) {
  ::alarm(60);  // should none come
  const auto trace = TraceMainThread();
  std::array<int, 2> ends{};
  const int out = ::dup(STDERR_FILENO);
  if (::pipe(ends.data()) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) std::abort();
  std::atomic<bool> written = false;
  std::thread asker([&] {
    while (!written) {
      trace();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  pollfd wait = {ends[0], POLLIN, 0};
  while (::poll(&wait, 1, -1) < 0 && errno == EINTR) {
  }
  written = true;
  asker.join();
  std::array<char, 64 * 1024> text{};
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  if (n <= 0 || ::write(out, text.data(), static_cast<size_t>(n)) != n) std::abort();
  std::exit(code);
}

TEST_F(BacktraceTest, AnotherThreadAsksWhereTheMainThreadStandsAndItGoesOn) {
  EXPECT_EXIT(WaitForATraceAndExit(7), ::testing::ExitedWithCode(7), "base_test.*\\[0x");
}

}  // namespace
}  // namespace muster
