#include "daemon/agent/memory_grants.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
using GrantedMemory = std::shared_ptr<const UniqueFd>;

GrantedMemory NewMemory() {
  return std::make_shared<const UniqueFd>(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

// A node of 1000 MiB, 100 of which are kept free, and its cgroups.
class MemoryGrantsTest : public testing::Test {
 protected:
  MemoryGrantsTest() { Node(1000); }
  void Node(uint64_t available, uint64_t swap = 0) {
    Write("proc/meminfo", "MemTotal: 99999 kB\nMemAvailable:  " + std::to_string(available * 1024) +
                              " kB\nSwapFree: " + std::to_string(swap * 1024) + " kB\n");
  }
  void Process(pid_t pid, const std::string& cgroup) {
    Write("proc/" + std::to_string(pid) + "/cgroup", "0::" + cgroup + "\n");
  }
  void Limit(const std::string& cgroup, uint64_t most, uint64_t current, uint64_t files = 0) {
    Write("cgroup" + cgroup + "/memory.max", std::to_string(most * kMiB) + "\n");
    Write("cgroup" + cgroup + "/memory.current", std::to_string(current * kMiB) + "\n");
    Write("cgroup" + cgroup + "/memory.stat",
          "anon 5\nfile 99999999999\ninactive_file " + std::to_string(files * kMiB) + "\nactive_file 0\n");
    Write("cgroup" + cgroup + "/memory.swap.max", "max\n");
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = directory_.path() + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  std::string Ask(MemoryGrants::Share& share, const GrantedMemory& memory, uint64_t mebibytes) {
    const Status status = grants_.Ask(share, memory, mebibytes * kMiB);
    return status ? "granted" : status.error().message;
  }

  TemporaryDirectory directory_;
  MemoryGrants grants_{100 * kMiB, {directory_.path() + "/proc", directory_.path() + "/cgroup"}};
};

TEST_F(MemoryGrantsTest, WithoutALimitTheNodesMemoryCounts) {
  Process(7, "/");
  const auto share = grants_.Join(7);
  EXPECT_EQ(
      Ask(*share, NewMemory(), 901),
      "901 MiB more are needed; the node has 1000 MiB available, of which 0 MiB are granted to other saves "
      "and 100 MiB are kept free (health_memory_min)");
  EXPECT_EQ(Ask(*share, NewMemory(), 900), "granted");
}

TEST_F(MemoryGrantsTest, SwapIsMemoryToo) {
  Node(1000, 200);
  Process(7, "/job");
  Limit("/job", 500, 100);
  const auto share = grants_.Join(7);
  EXPECT_THAT(Ask(*share, NewMemory(), 601), HasSubstr("leaves 600 MiB"));
  Write("cgroup/job/memory.swap.max", "0\n");
  EXPECT_THAT(Ask(*share, NewMemory(), 401), HasSubstr("leaves 400 MiB"));
}

TEST_F(MemoryGrantsTest, TheNarrowestLimitCountsWhereverItIs) {
  Process(7, "/slurm/job_5/step_0/task_0");
  Limit("/slurm/job_5", 500, 100, 50);
  Limit("/slurm", 5000, 100);
  Write("cgroup/slurm/job_5/step_0/memory.max", "max\n");
  auto share = grants_.Join(7);
  EXPECT_EQ(
      Ask(*share, NewMemory(), 451),
      "451 MiB more are needed; the job's memory limit leaves 450 MiB, of which 0 MiB are granted to other "
      "saves (cgroup /slurm/job_5; sbatch --mem)");
  EXPECT_EQ(Ask(*share, NewMemory(), 450), "granted");
  share.reset();
  share = grants_.Join(7);
  Limit("/slurm", 300, 290);
  EXPECT_THAT(Ask(*share, NewMemory(), 11), HasSubstr("cgroup /slurm;"));
}

TEST_F(MemoryGrantsTest, WhatOthersHaveBeenGrantedAndNotTakenIsNotThere) {
  Process(7, "/job/task_0");
  Process(8, "/job/task_1");
  Limit("/job", 500, 0);
  auto one = grants_.Join(7);
  const auto other = grants_.Join(8);
  const GrantedMemory memory = NewMemory();
  ASSERT_EQ(Ask(*one, memory, 300), "granted");
  EXPECT_THAT(Ask(*other, NewMemory(), 201), HasSubstr("leaves 500 MiB, of which 300 MiB are granted"));
  // Some of it is taken: then the cgroup has it.
  ASSERT_EQ(::ftruncate(memory->get(), 300 * kMiB), 0);
  ASSERT_EQ(::fallocate(memory->get(), 0, 0, 4 * kMiB), 0);
  EXPECT_THAT(Ask(*other, NewMemory(), 205), HasSubstr("leaves 500 MiB, of which 296 MiB are granted"));
  EXPECT_EQ(Ask(*other, NewMemory(), 204), "granted");
  one.reset();
  EXPECT_EQ(Ask(*other, NewMemory(), 296), "granted");
}

TEST_F(MemoryGrantsTest, TheSameMemoryCountsOnceAndWhatItHasIsNotNeeded) {
  Process(7, "/job");
  Limit("/job", 500, 0);
  const auto share = grants_.Join(7);
  const GrantedMemory memory = NewMemory();
  ASSERT_EQ(::ftruncate(memory->get(), 300 * kMiB), 0);
  ASSERT_EQ(::fallocate(memory->get(), 0, 0, 4 * kMiB), 0);
  EXPECT_EQ(Ask(*share, memory, 300), "granted");
  EXPECT_EQ(Ask(*share, memory, 504), "granted");
  EXPECT_THAT(Ask(*share, memory, 505), HasSubstr("501 MiB more are needed"));
}

TEST_F(MemoryGrantsTest, GrantsUnderAnotherLimitTakeNothingFromThisOne) {
  Process(7, "/job1");
  Process(8, "/job10/task");
  Limit("/job1", 300, 0);
  Limit("/job10", 300, 0);
  const auto one = grants_.Join(7);
  const auto other = grants_.Join(8);
  EXPECT_EQ(Ask(*one, NewMemory(), 300), "granted");
  EXPECT_EQ(Ask(*other, NewMemory(), 300), "granted");
  // The node's memory is for both.
  Process(9, "/");
  EXPECT_THAT(Ask(*grants_.Join(9), NewMemory(), 301), HasSubstr("of which 600 MiB are granted"));
}

TEST_F(MemoryGrantsTest, CgroupsOfVersionOneHaveLimitsToo) {
  Write("proc/7/cgroup", "5:cpu,memory:/slurm/job_5/step_0\n1:name=systemd:/x\n0::/x\n");
  const std::string job = "cgroup/memory/slurm/job_5/memory.";
  Write(job + "limit_in_bytes", std::to_string(500 * kMiB));
  Write(job + "usage_in_bytes", std::to_string(100 * kMiB));
  Write(job + "stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(50 * kMiB) + "\n");
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  const auto share = grants_.Join(7);
  EXPECT_THAT(Ask(*share, NewMemory(), 451), HasSubstr("leaves 450 MiB"));
  EXPECT_THAT(Ask(*share, NewMemory(), 451), HasSubstr("cgroup /memory/slurm/job_5;"));
  Node(1000, 200);
  EXPECT_THAT(Ask(*share, NewMemory(), 651), HasSubstr("leaves 650 MiB"));
  Write(job + "memsw.limit_in_bytes", std::to_string(600 * kMiB));
  Write(job + "memsw.usage_in_bytes", std::to_string(150 * kMiB));
  EXPECT_THAT(Ask(*share, NewMemory(), 501), HasSubstr("leaves 500 MiB"));
  EXPECT_EQ(Ask(*share, NewMemory(), 500), "granted");
}

TEST_F(MemoryGrantsTest, OfAProcessThatHasGoneTheNodeAloneIsKnown) {
  EXPECT_EQ(Ask(*grants_.Join(4711), NewMemory(), 500), "granted");
}

TEST_F(MemoryGrantsTest, WhatIsNoMemfdIsRefused) {
  Process(7, "/");
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const UniqueFd write(pipe[1]);
  const auto refused = grants_.Ask(*grants_.Join(7), std::make_shared<const UniqueFd>(pipe[0]), kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kInvalid);
}

}  // namespace
}  // namespace muster
