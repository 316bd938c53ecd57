#include "daemon/health/process_usage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>

#include "tests/unit/health/temporary_tree.h"

namespace muster {
namespace {

std::string StatLine(int pid, const std::string& comm, char state, int parent, int user, int system,
                     int waited) {
  return fmt::format("{} ({}) {} {} 1 1 0 -1 0 0 0 0 0 {} {} {} 0 20 0 1 0 5 0 0\n", pid, comm, state, parent,
                     user, system, waited);
}

class FakeProc : public ::testing::Test {
 protected:
  void Process(int pid, char state, int parent, int ticks, const std::string& children,
               const std::string& comm = "python") {
    const std::string base = std::to_string(pid);
    const std::string stat = StatLine(pid, comm, state, parent, ticks, ticks, ticks);
    tree_.Write(base + "/stat", stat);
    tree_.Write(base + "/io",
                fmt::format("rchar: {}\nwchar: {}\nsyscr: 9\nread_bytes: 5\n", pid * 10, pid * 100));
    tree_.Write(fmt::format("{}/task/{}/stat", base, pid), stat);
    if (lists_) tree_.Write(fmt::format("{}/task/{}/children", base, pid), children);
  }
  static int64_t Ns(int ticks) { return ticks * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)); }

  TemporaryTree tree_;
  bool lists_ = true;
};

TEST_F(FakeProc, TheWholeTreeIsSummedAndNobodyElse) {
  Process(10, 'S', 1, 1, "11 12 ");
  Process(11, 'R', 10, 2, "13 ");
  Process(12, 'D', 10, 3, "");
  Process(13, 'S', 11, 4, "");
  Process(99, 'D', 1, 50, "");
  const auto usage = ProcessTreeUsage(10, tree_.path());
  ASSERT_TRUE(usage) << usage.error().message;
  EXPECT_EQ(usage->processes, 4U);
  EXPECT_EQ(usage->threads, 4U);
  EXPECT_EQ(usage->blocked_threads, 1U);
  EXPECT_EQ(usage->cpu_ns, Ns(3 * (1 + 2 + 3 + 4)));
  EXPECT_EQ(usage->read_bytes, 10U * (10 + 11 + 12 + 13));
  EXPECT_EQ(usage->write_bytes, 100U * (10 + 11 + 12 + 13));
}

TEST_F(FakeProc, WithoutTheKernelsListsOfChildrenTheTreeIsFoundByParents) {
  lists_ = false;
  Process(10, 'S', 1, 1, "");
  Process(11, 'R', 10, 2, "");
  Process(13, 'S', 11, 4, "");
  Process(99, 'D', 1, 50, "");
  const auto usage = ProcessTreeUsage(10, tree_.path());
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->processes, 3U);
  EXPECT_EQ(usage->cpu_ns, Ns(3 * 7));
}

TEST_F(FakeProc, ANameWithParenthesesAndSpacesChangesNothing) {
  Process(10, 'D', 1, 7, "", "a) R 1 (b) ");
  const auto usage = ProcessTreeUsage(10, tree_.path());
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->cpu_ns, Ns(21));
  EXPECT_EQ(usage->blocked_threads, 1U);
}

TEST_F(FakeProc, EveryThreadThatIsBlockedCounts) {
  Process(10, 'S', 1, 1, "");
  tree_.Write("10/task/14/stat", StatLine(14, "loader", 'D', 1, 0, 0, 0));
  tree_.Write("10/task/15/stat", StatLine(15, "loader", 'D', 1, 0, 0, 0));
  tree_.Write("10/task/15/children", "16");
  Process(16, 'S', 10, 1, "");
  const auto usage = ProcessTreeUsage(10, tree_.path());
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->threads, 4U);
  EXPECT_EQ(usage->blocked_threads, 2U);
  EXPECT_EQ(usage->processes, 2U) << "a thread's children are the process's";
}

TEST_F(FakeProc, ACircleOfPidsUsedAgainEnds) {
  Process(10, 'S', 11, 1, "11");
  Process(11, 'S', 10, 1, "10");
  EXPECT_EQ(ProcessTreeUsage(10, tree_.path())->processes, 2U);
}

TEST_F(FakeProc, WhatIsGoneOrBrokenIsPassedOver) {
  Process(10, 'S', 1, 1, "11 12 13 x");
  tree_.Write("12/stat", "12 (half");
  tree_.Write("13/stat", "13 (short) S 10 1");
  EXPECT_EQ(ProcessTreeUsage(10, tree_.path())->processes, 1U);
  const auto none = ProcessTreeUsage(77, tree_.path());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kNotFound);
}

TEST(ProcessUsage, OfARealTreeGrowsWithItsWork) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      // Writes to nowhere until it is killed: CPU time and bytes.
      const int null = ::open("/dev/null", O_WRONLY);
      std::array<char, 4096> block{};
      while (::write(null, block.data(), block.size()) > 0) {
      }
      ::_exit(0);
    }
    [[maybe_unused]] const ssize_t n = ::write(ends[1], &grandchild, sizeof grandchild);
    ::pause();
    ::_exit(0);
  }
  pid_t grandchild = 0;
  EXPECT_EQ(::read(ends[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ProcessUsage usage;
  while ((usage.cpu_ns == 0 || usage.write_bytes == 0) && std::chrono::steady_clock::now() < until) {
    const auto now = ProcessTreeUsage(child);
    ASSERT_TRUE(now);
    usage = *now;
    EXPECT_EQ(usage.processes, 2U);
    EXPECT_GE(usage.threads, 2U);  // a sanitizer may have its own
  }
  EXPECT_GT(usage.cpu_ns, 0);
  EXPECT_GT(usage.write_bytes, 0U);
  ::kill(grandchild, SIGKILL);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(ProcessTreeUsage(child));
}

}  // namespace
}  // namespace muster
