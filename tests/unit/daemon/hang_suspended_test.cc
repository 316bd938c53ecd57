#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/hang/suspended.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster::hang {
namespace {

constexpr pid_t kSupervisor = 12;

class Suspended : public ::testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = directory_.path() + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  bool Is() { return IsSuspended(kSupervisor, directory_.path() + "/proc", directory_.path() + "/cgroup"); }
  TemporaryDirectory directory_;
};

TEST_F(Suspended, WhoIsStoppedOrFrozenByVersion1) {
  Put("proc/12/cgroup", "6:freezer:/slurm/job_1\n");
  for (const char state : {'T', 'D'}) {
    Put("proc/12/stat", std::string("12 (muster) T 1) ") + state + " 1 12 12");
    EXPECT_TRUE(Is()) << state;
  }
  Put("proc/12/stat", "12 (muster) T 1) S 1 12 12");
  EXPECT_FALSE(Is());
}

TEST_F(Suspended, WhoIsFrozenByVersion2AndSeemsToSleep) {
  Put("proc/12/stat", "12 (muster) S 1 12 12");
  Put("proc/12/cgroup", "0::/system.slice/slurmstepd.scope/job_1/step_0\n");
  EXPECT_FALSE(Is());
  Put("cgroup/system.slice/slurmstepd.scope/job_1/step_0/cgroup.events", "populated 1\nfrozen 0\n");
  EXPECT_FALSE(Is());
  Put("cgroup/system.slice/slurmstepd.scope/job_1/step_0/cgroup.events", "populated 1\nfrozen 1\n");
  EXPECT_TRUE(Is());
}

TEST_F(Suspended, NobodyWhoIsNotThere) {
  EXPECT_FALSE(Is());
}

TEST_F(Suspended, AProcessOfThisMachineThatIsStopped) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  EXPECT_TRUE(IsSuspended(child));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace muster::hang
