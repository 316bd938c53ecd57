// Copies of states: the same bytes as memcpy's, whatever the addresses, sizes and number of threads.
#include "ceph/client/large_copy.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace muster::client {
namespace {

std::vector<char> Pattern(size_t bytes) {
  std::vector<char> data(bytes);
  uint32_t seed = 1;
  for (char& byte : data) {
    seed = seed * 1664525U + 1013904223U;
    byte = static_cast<char>(seed >> 24);
  }
  return data;
}

void Check(const std::vector<char>& from, size_t bytes, size_t from_at, size_t to_at, unsigned threads) {
  std::vector<char> to(to_at + bytes + 64, '~');
  LargeCopy(to.data() + to_at, from.data() + from_at, bytes, threads);
  std::vector<char> expected(to.size(), '~');
  std::copy_n(from.data() + from_at, bytes, expected.data() + to_at);
  EXPECT_TRUE(to == expected) << bytes << " bytes from +" << from_at << " to +" << to_at << " by " << threads;
}

TEST(LargeCopy, EveryAlignmentAndWhatIsLeftAtBothEnds) {
  const std::vector<char> from = Pattern(40000);
  for (const size_t bytes : {0u, 1u, 63u, 16383u, 16384u, 16385u, 16447u, 20000u}) {
    for (size_t from_at = 0; from_at < 80; from_at += 7) {
      for (size_t to_at = 0; to_at < 80; to_at += 3) Check(from, bytes, from_at, to_at, 1);
    }
  }
}

TEST(LargeCopy, AnyNumberOfThreads) {
  const size_t largest = 60 * 1000 * 1000 + 13;
  const std::vector<char> from = Pattern(largest + 64);
  for (const unsigned threads : {1u, 2u, 3u, 7u, 64u, 1000u}) {
    Check(from, largest, 64, 1, threads);
    Check(from, size_t{16} << 20, 0, 0, threads);
    Check(from, (size_t{16} << 20) - 1, 0, 64, threads);
  }
}

std::atomic<int> signals_elsewhere{0};
std::thread::id here;

TEST(LargeCopy, ItsThreadsTakeNoSignalOfTheProgram) {
  here = std::this_thread::get_id();
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {
    if (std::this_thread::get_id() != here) ++signals_elsewhere;
  };
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  // This thread does not take it, so that whoever would take it in its place shows.
  sigset_t alarm;
  sigset_t mask;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ASSERT_EQ(sigprocmask(SIG_BLOCK, &alarm, &mask), 0);
  const std::vector<char> from = Pattern(size_t{32} << 20);
  std::vector<char> to(from.size());
  kill(getpid(), SIGALRM);
  for (int i = 0; i < 20; ++i) LargeCopy(to.data(), from.data(), to.size(), 4);
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGALRM), 1) << "it waits for this thread";
  sigset_t after;
  ASSERT_EQ(sigprocmask(SIG_SETMASK, &mask, &after), 0);
  EXPECT_EQ(sigismember(&after, SIGALRM), 1) << "the mask is as it was";
  EXPECT_EQ(sigismember(&after, SIGTERM), 0);
  EXPECT_EQ(signals_elsewhere, 0);
  sigaction(SIGALRM, &before, nullptr);
}

TEST(LargeCopy, TheNumberOfThreadsIsTheEnvironmentsOrThatOfTheCpus) {
  cpu_set_t cpus;
  ASSERT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  const unsigned usual = std::min(4, CPU_COUNT(&cpus));
  unsetenv("MUSTER_COPY_THREADS");
  EXPECT_EQ(CopyThreads(), usual);
  for (const char* bad : {"", "0", "65", "-1", "+2", "two", "2x", "99999999999999999999"}) {
    setenv("MUSTER_COPY_THREADS", bad, 1);
    EXPECT_EQ(CopyThreads(), usual) << bad;
  }
  setenv("MUSTER_COPY_THREADS", "64", 1);
  EXPECT_EQ(CopyThreads(), 64u);
  setenv("MUSTER_COPY_THREADS", "1", 1);
  EXPECT_EQ(CopyThreads(), 1u);
  unsetenv("MUSTER_COPY_THREADS");
}

}  // namespace
}  // namespace muster::client
