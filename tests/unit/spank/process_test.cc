// What /proc says about real processes.
#include "spank-plugin/supervisor/process_facts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

class Process : public testing::Test {
 protected:
  UniqueFd proc{open("/proc", O_PATH | O_CLOEXEC)};
};

TEST_F(Process, HasExecutedOnlyAfterItsExecAndAlsoAsAZombie) {
  int hold[2];
  ASSERT_EQ(pipe2(hold, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    char byte = 0;
    (void)!read(hold[0], &byte, 1);
    execl("/bin/true", "true", nullptr);
    _exit(1);
  }
  EXPECT_FALSE(HasExecuted(proc.get(), pid));
  EXPECT_EQ(write(hold[1], "x", 1), 1);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(HasExecuted(proc.get(), pid));
  EXPECT_STREQ(NameOf(proc.get(), pid).text, "true");
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_FALSE(HasExecuted(proc.get(), pid));
  close(hold[0]);
  close(hold[1]);
}

TEST_F(Process, ANameWithSpacesAndBracketsDoesNotConfuse) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_NAME, "a) S 1 (b");
    pause();
    _exit(0);
  }
  EXPECT_TRUE(Until([&] { return std::string(NameOf(proc.get(), pid).text) == "a) S 1 (b"; }));
  EXPECT_FALSE(HasExecuted(proc.get(), pid));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(Process, ChildrenAreListedWhateverTheirNumber) {
  Children children;
  ASSERT_TRUE(children.Open(proc.get()));
  EXPECT_EQ(children.Count(0), 0);
  constexpr int kMany = 1500;  // the list is longer than one read
  pid_t last = 0;
  for (int i = 0; i < kMany; ++i) {
    last = fork();
    if (last == 0) {
      pause();
      _exit(0);
    }
  }
  EXPECT_EQ(children.Count(0), kMany);
  EXPECT_EQ(children.Kill(last), kMany - 1);
  int reaped = 0;
  for (; reaped < kMany - 1; ++reaped) ASSERT_NE(waitpid(-1, nullptr, 0), last) << "it was to be spared";
  EXPECT_EQ(children.Count(last), 0);
  EXPECT_EQ(children.Kill(0), 1);
  while (waitpid(-1, nullptr, 0) > 0) ++reaped;
  EXPECT_EQ(reaped, kMany);
}

TEST_F(Process, ChildrenThatWorkOrGoAreSeen) {
  Children children;
  ASSERT_TRUE(children.Open(proc.get()));
  const auto start = [](bool works) {
    const pid_t pid = fork();
    while (pid == 0) {
      if (!works) pause();
    }
    return pid;
  };
  const pid_t idle = start(false);
  const pid_t busy = start(true);
  const auto look = [&](pid_t spared = 0) { return children.Look(proc.get(), spared); };
  const Exiting first = look();
  EXPECT_EQ(first.count, 2);
  EXPECT_EQ(first.threads, 2U);
  EXPECT_GT(first.pages, 0U);
  EXPECT_TRUE(Until([&] { return look().ticks > first.ticks + 5; }));
  for (const pid_t pid : {idle, busy}) {
    kill(pid, SIGSTOP);
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT), 0);
  }
  const Exiting still = look();
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(look().GoesOnFrom(still, 0));
  EXPECT_EQ(look(busy).count, 1);
  kill(busy, SIGKILL);
  EXPECT_EQ(waitpid(busy, nullptr, 0), busy);
  EXPECT_TRUE(look().GoesOnFrom(still, 1000));
  kill(idle, SIGKILL);
  EXPECT_EQ(waitpid(idle, nullptr, 0), idle);
}

TEST_F(Process, MayDumpCoreFollowsTheLimitUnlessAProgramTakesTheCores) {
  std::string pattern;
  std::ifstream("/proc/sys/kernel/core_pattern") >> pattern;
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    kill(getpid(), SIGSTOP);
    _exit(0);
  }
  waitpid(pid, nullptr, WUNTRACED);
  EXPECT_EQ(MayDumpCore(proc.get(), pid), pattern[0] == '|');
  EXPECT_EQ(CoreDumpStatus(proc.get(), pid), 0);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(CoreDump, InProgressCountsAsDeathAndAStopDoesNotWaitForIt) {
  rlimit limit{};
  std::string pattern;
  std::ifstream("/proc/sys/kernel/core_pattern") >> pattern;
  getrlimit(RLIMIT_CORE, &limit);
  if (limit.rlim_max != RLIM_INFINITY || pattern.empty() || pattern[0] == '|' || pattern[0] == '/') {
    GTEST_SKIP() << "cores do not go to the program's directory on this machine";
  }
  char directory[] = "/tmp/muster-core-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  Rig rig;
  rig.settings.core_poll_ms = 5;
  rig.in_task = [&] {
    const rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &all);
    (void)!chdir(directory);
  };
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "exec /usr/bin/python3 -c 'import os; b = b\"x\" * (1 << 30); os.abort()'");
  const pid_t pid = rig.ExpectExecuted(1);
  const auto exited = rig.Expect<wire::Exited>(wire::Type::kExited);
  const bool in_progress = IsAlive(pid);
  EXPECT_EQ(WTERMSIG(exited.wait_status), SIGABRT);
  EXPECT_TRUE(WCOREDUMP(exited.wait_status));
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Stopped>(wire::Type::kStopped).unkillable, 0U);
  EXPECT_TRUE(in_progress) << "the dump was over before it was seen";
  EXPECT_FALSE(IsAlive(pid));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster::supervisor
