#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/unit/health/recorder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kEnded[] = "4194305";  // above every pid

class Gpus : public ::testing::Test {
 protected:
  Gpus() {
    options_.nvml_library = MUSTER_FAKE_NVML_LIBRARY;
    ::setenv("MUSTER_FAKE_NVML", (tree_ / "nvml").c_str(), 1);
    std::filesystem::create_directories(tree_ / "proc/self/ns");
    NamespaceOf("pid:[4026531836]");
    Say("count 2\n");
  }
  ~Gpus() override { ::unsetenv("MUSTER_FAKE_NVML"); }

  void NamespaceOf(const std::string& name) const {
    std::filesystem::remove(tree_ / "proc/self/ns/pid");
    std::filesystem::create_symlink(name, tree_ / "proc/self/ns/pid");
  }
  void Say(const std::string& text) const {
    tree_.Write("nvml.new", text);
    std::filesystem::rename(tree_ / "nvml.new", tree_ / "nvml");
  }
  std::vector<std::string> Check() {
    Recorder recorder;
    CheckGpus(options_, recorder.findings);
    return recorder.texts;
  }
  TemporaryTree tree_;
  HealthOptions options_ = QuietOptions(tree_);
};

TEST_F(Gpus, WithNothingWrongAreNoFinding) {
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Gpus, WithoutTheLibraryThereIsNothingToCheck) {
  options_.nvml_library = "libmuster-no-such-library.so.1";
  EXPECT_THAT(Check(), IsEmpty());
  options_.nvml_library = "";
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Gpus, ALibraryThatIsNotNvmlIsAWarning) {
  options_.nvml_library = "libm.so.6";
  EXPECT_THAT(Check(), ElementsAre("warning gpus libm.so.6 is not NVML: it lacks its functions"));
}

TEST_F(Gpus, WithoutADriverIsSickWhereAGpuIsOnTheBus) {
  Say("init 9\n");
  tree_.Write("sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
  tree_.Write("sys/bus/pci/devices/0000:00:1f.0/class", "0x030000\n");
  EXPECT_THAT(Check(), IsEmpty());
  tree_.Write("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n");
  tree_.Write("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n");
  EXPECT_THAT(Check(), ElementsAre("SICK gpus cannot be used: something is wrong (NVML error 9)"));
}

TEST_F(Gpus, ADriverThatDoesNotMatchIsSick) {
  Say("init 18\n");
  EXPECT_THAT(Check(), ElementsAre("SICK gpus cannot be used: something is wrong (NVML error 18)"));
}

TEST_F(Gpus, MemoryErrorsAreSick) {
  Say("count 3\n0 ecc 2\n1 rows 1\n2 pages 1\n");
  EXPECT_THAT(Check(), ElementsAre("SICK gpu 0 had 2 uncorrectable memory errors since its last reset",
                                   "SICK gpu 1 has a damaged row of its memory to remap: reset it",
                                   "SICK gpu 2 has damaged pages of its memory to retire: reset it"));
  Say("count 1\n0 rows 2\n");
  EXPECT_THAT(Check(), ElementsAre("SICK gpu 0 could not remap a damaged row of its memory: replace it"));
}

TEST_F(Gpus, ALostOneIsSickOnceAndTheOthersAreLookedAt) {
  Say("count 3\n0 ecc error 15\n0 rows error 15\n1 handle error 15\n2 ecc 1\n");
  EXPECT_THAT(Check(), ElementsAre("SICK gpu 0 does not tell its memory errors: GPU is lost (NVML error 15)",
                                   "SICK gpu 1 does not tell its handle: GPU is lost (NVML error 15)",
                                   "SICK gpu 2 had 1 uncorrectable memory errors since its last reset"));
}

TEST_F(Gpus, WhatAGpuDoesNotHaveIsNoFinding) {
  Say("count 1\n0 ecc error 3\n0 rows error 3\n0 pages error 13\n0 clocks error 4\n0 memory error 3\n");
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Gpus, OnlyThoseThatAreAskedForAreLookedAt) {
  Say("count 2\n0 ecc 1\n");
  options_.gpus = {1};
  EXPECT_THAT(Check(), IsEmpty());
  options_.gpus = {1, 7};
  EXPECT_THAT(Check(), ElementsAre("SICK gpu 7 is not there: NVML knows 2"));
}

TEST_F(Gpus, MemoryHeldByAProcessThatHasEndedIsSick) {
  Say(fmt::format("0 processes {},{}\n0 memory 99999999999\n", ::getpid(), kEnded));
  tree_.Write(fmt::format("proc/{}/stat", ::getpid()), "1 (python) S 1 1\n");
  EXPECT_THAT(Check(), ElementsAre("SICK gpu 0 is held by process 4194305, which has ended: reset it"));
}

TEST_F(Gpus, AZombieHasEndedUnlessAThreadOfItsRuns) {
  Say("0 processes 77\n");
  const std::string fields = " 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 ";
  tree_.Write("proc/77/stat", "77 (a) Z" + fields + "1 0 5\n");
  EXPECT_THAT(Check(), ::testing::SizeIs(1));
  tree_.Write("proc/77/stat", "77 (a) Z" + fields + "2 0 5\n");
  EXPECT_THAT(Check(), IsEmpty());
  tree_.Write("proc/77/stat", "77 (a) S" + fields + "1 0 5\n");
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Gpus, FromInsideAPidNamespaceOthersPidsSayNothing) {
  Say(fmt::format("0 processes {}\n", kEnded));
  NamespaceOf("pid:[4026532000]");
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Gpus, MemoryThatNoProcessAccountsForIsSick) {
  Say(fmt::format("0 memory {}\n1 memory {}\n", 3ULL << 30, 1ULL << 29));
  EXPECT_THAT(Check(), ElementsAre("SICK gpu 0 has 3072 MiB of its memory in use by no process: reset it"));
}

TEST_F(Gpus, MemoryThatIsBeingFreedIsWaitedFor) {
  Say(fmt::format("0 memory {}\n", 3ULL << 30));
  options_.settle = std::chrono::seconds(60);
  std::thread frees([&] { Say("count 1\n"); });
  EXPECT_THAT(Check(), IsEmpty());
  frees.join();
}

TEST_F(Gpus, MoreProcessesThanExpectedAreListedAll) {
  tree_.Write("proc/77/stat", "77 (a) S 1 1\n");
  Say(fmt::format("0 processes 77*300,{}\n", kEnded));
  EXPECT_THAT(Check(), ::testing::SizeIs(1));
}

TEST_F(Gpus, LowClocksAreAWarning) {
  Say("count 4\n0 clocks 64\n1 clocks 128\n2 clocks 8\n3 clocks 5\n");  // 5: idle, and its power limit
  EXPECT_THAT(Check(), ElementsAre("warning gpu 0 runs slowly: it is too hot",
                                   "warning gpu 1 runs slowly: the power supply asked for it",
                                   "warning gpu 2 runs slowly: its hardware asked for it"));
}

}  // namespace
}  // namespace muster
