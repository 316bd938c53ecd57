// What /proc says about real processes.
#include "spank-plugin/supervisor/process_facts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

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

// A child that SIGKILL has ended, with a child of its own, both held by a tracer at their ends.
class HeldProcesses : public Process {
 protected:
  void SetUp() override {
    ASSERT_TRUE(children.Open(proc.get()));
    pids[1] = fork();
    if (pids[1] == 0) {
      if (fork() >= 0) pause();
      _exit(0);
    }
    const std::string task = std::to_string(pids[1]);
    ASSERT_TRUE(Until([&] {
      std::ifstream("/proc/" + task + "/task/" + task + "/children") >> pids[0];
      return pids[0] != 0;
    }));
    for (const pid_t pid : pids) ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT), 0);
    ASSERT_TRUE(Until([&] { return Kill().all_exit; }));
  }
  void TearDown() override {
    for (const pid_t pid : pids) {
      EXPECT_EQ(waitpid(pid, nullptr, __WALL), pid);  // it stops at its end
      EXPECT_EQ(ptrace(PTRACE_CONT, pid, nullptr, nullptr), 0);
      EXPECT_EQ(waitpid(pid, nullptr, __WALL), pid);
    }
  }
  [[nodiscard]] KillPass Kill() const { return children.KillBelow(proc.get(), 0); }

  Children children;
  std::array<pid_t, 2> pids{};
};

TEST_F(HeldProcesses, OnlyExitWhenTwoLooksFindTheSame) {
  const KillPass first = Kill();
  EXPECT_TRUE(first.all_exit);
  EXPECT_EQ(Kill(), first);
  const pid_t another = fork();
  if (another == 0) pause();
  EXPECT_NE(Kill().found, first.found);
  EXPECT_EQ(waitpid(another, nullptr, 0), another);
}

TEST_F(HeldProcesses, AreNotCalledExitingWhenTheyCannotBeLookedAt) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const int next = dup(proc.get());
  close(next);
  for (const int more : {0, 1, 2}) {
    const rlimit few{static_cast<rlim_t>(next + more), files.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const bool all_exit = Kill().all_exit;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    EXPECT_FALSE(all_exit) << more << " more files";
  }
}

// A file system that answers no request: a process that makes one waits in the kernel, also when SIGKILL has come.
class SilentFileSystem {
 public:
  SilentFileSystem() {
    if (mkdtemp(path_) == nullptr || !requests_.valid()) return;
    char options[100];
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", requests_.get());
    mounted_ = mount("silent", path_, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
    fuse_in_header init{};
    if (!Take(&init)) return;
    struct {
      fuse_out_header header{};
      fuse_init_out init{.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION};
    } answer;
    answer.header.len = sizeof(answer);
    answer.header.unique = init.unique;
    mounted_ = write(requests_.get(), &answer, sizeof(answer)) == sizeof(answer);
  }
  ~SilentFileSystem() {
    if (mounted_) umount2(path_, MNT_FORCE | MNT_DETACH);  // whoever waits is let go
    rmdir(path_);
  }
  SilentFileSystem(const SilentFileSystem&) = delete;
  SilentFileSystem& operator=(const SilentFileSystem&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::string File() const { return std::string(path_) + "/file"; }
  bool Take(fuse_in_header* header) {
    std::vector<char> request(FUSE_MIN_READ_BUFFER + 4096);
    const ssize_t got = mounted_ ? read(requests_.get(), request.data(), request.size()) : -1;
    if (got >= static_cast<ssize_t>(sizeof(*header))) memcpy(header, request.data(), sizeof(*header));
    return got >= static_cast<ssize_t>(sizeof(*header));
  }

 private:
  char path_[32] = "/tmp/muster-silent-XXXXXX";
  UniqueFd requests_{open("/dev/fuse", O_RDWR | O_CLOEXEC)};
  bool mounted_ = false;
};

TEST_F(Process, OneThatSigkillHasNotTakenOutOfASystemCallDoesMoreThanExit) {
  Children children;
  ASSERT_TRUE(children.Open(proc.get()));
  std::optional<SilentFileSystem> files;
  files.emplace();
  if (!files->mounted()) GTEST_SKIP() << "this needs root and /dev/fuse";
  const pid_t pid = fork();
  if (pid == 0) {
    close_range(3, ~0U, 0);  // the end of the test is the end of the file system
    (void)!truncate(files->File().c_str(), 0);
    _exit(0);
  }
  fuse_in_header request{};
  ASSERT_TRUE(files->Take(&request));
  for (int pass = 0; pass < 20; ++pass) {
    EXPECT_FALSE(children.KillBelow(proc.get(), 0).all_exit);
    usleep(1'000);
  }
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0);
  files.reset();
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
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
