// Copies of states: the same bytes as memcpy's, whatever the addresses, sizes and number of threads.
#include "client/libmuster/large_copy.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
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

// The signals that each thread of this process blocks.
std::map<std::string, uint64_t> Blocked() {
  std::map<std::string, uint64_t> blocked;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:"))
        blocked[task.path().filename()] = std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return blocked;
}

TEST(LargeCopy, ItsThreadsTakeNoSignalButThoseOfFaults) {
  const std::vector<char> from = Pattern(size_t{64} << 20);
  std::vector<char> to(from.size());
  const std::map<std::string, uint64_t> before = Blocked();
  std::atomic<bool> seen{false};
  std::vector<uint64_t> others;
  std::optional<uint64_t> copying;
  const auto has = [](uint64_t blocked, int signal) { return (blocked >> (signal - 1) & 1) != 0; };
  std::thread look([&] {
    const std::string self = std::to_string(::syscall(SYS_gettid));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!seen && std::chrono::steady_clock::now() < until) {
      for (const auto& [task, blocked] : Blocked()) {
        if (before.contains(task) || task == self) continue;
        others.push_back(blocked);
        // libc blocks all of them as a thread begins and ends.
        if (has(blocked, SIGSEGV)) continue;
        copying = blocked;
        seen = true;
      }
    }
    seen = true;
  });
  sigset_t mask;
  sigset_t after;
  ASSERT_EQ(sigprocmask(SIG_BLOCK, nullptr, &mask), 0);
  while (!seen) LargeCopy(to.data(), from.data(), to.size(), 4);
  look.join();
  ASSERT_EQ(sigprocmask(SIG_BLOCK, nullptr, &after), 0);
  ASSERT_TRUE(copying) << "no thread was seen that copies";
  EXPECT_FALSE(has(*copying, SIGBUS));
  EXPECT_FALSE(has(*copying, SIGSYS));
  for (const uint64_t blocked : others) {
    for (const int signal : {SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGRTMIN + 1, SIGRTMAX})
      EXPECT_TRUE(has(blocked, signal)) << signal;
  }
  for (int signal = 1; signal < SIGRTMIN; ++signal)
    EXPECT_EQ(sigismember(&after, signal), sigismember(&mask, signal)) << "of the caller: " << signal;
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
