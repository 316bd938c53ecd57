#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/timex.h>

#include <thread>

#include "tests/unit/health/recorder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Memory : public ::testing::Test {
 protected:
  std::vector<std::string> Check() {
    Recorder recorder;
    CheckMemory(options_, recorder.findings);
    options_.last_counters = recorder.counters;
    return recorder.texts;
  }
  void Available(uint64_t mib, uint64_t corrupted_kib = 0) const {
    tree_.Write("proc/meminfo", fmt::format("MemTotal: 1 kB\nMemAvailable: {} kB\nHardwareCorrupted: {} kB\n",
                                            mib << 10, corrupted_kib));
  }
  TemporaryTree tree_;
  HealthOptions options_ = QuietOptions(tree_);
};

TEST_F(Memory, EnoughIsNoFinding) {
  Available(2'048);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Memory, TooLittleIsSick) {
  Available(1'000);
  EXPECT_THAT(Check(), ElementsAre("SICK memory has 1000 MiB available, the limit is 1024 MiB"));
  options_.memory_min_bytes = 0;
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Memory, ThatIsBeingFreedIsWaitedFor) {
  Available(10);
  options_.settle = std::chrono::seconds(60);
  std::thread frees([&] {
    tree_.Write("proc/new", "MemAvailable: 4000000 kB\n");
    std::filesystem::rename(tree_ / "proc/new", tree_ / "proc/meminfo");
  });
  EXPECT_THAT(Check(), IsEmpty());
  frees.join();
}

TEST_F(Memory, PagesTakenOutOfUseAreAWarning) {
  Available(2'048, 8);
  EXPECT_THAT(Check(),
              ElementsAre("warning memory has 8 KiB taken out of use by the kernel for hardware errors"));
}

TEST_F(Memory, UncorrectedErrorsAreSickAndManyCorrectedOnesAWarning) {
  tree_.Write("sys/devices/system/edac/mc/mc0/ue_count", "0\n");
  tree_.Write("sys/devices/system/edac/mc/mc0/ce_count", "1000\n");
  tree_.Write("sys/devices/system/edac/mc/mc1/ue_count", "2\n");
  EXPECT_THAT(Check(), ElementsAre("SICK memory had 2 uncorrected errors at controller mc1 since boot"));
  tree_.Write("sys/devices/system/edac/mc/mc1/ue_count", "0\n");
  tree_.Write("sys/devices/system/edac/mc/mc0/ce_count", "1099\n");
  EXPECT_THAT(Check(), IsEmpty());
  tree_.Write("sys/devices/system/edac/mc/mc0/ce_count", "1300\n");
  EXPECT_THAT(Check(),
              ElementsAre("warning memory had 201 corrected errors at controller mc0 since the last check"));
  tree_.Write("sys/devices/system/edac/mc/mc0/ce_count", "0\n");
  EXPECT_THAT(Check(), IsEmpty()) << "counters begin anew with the driver";
}

TEST_F(Memory, WithoutTheFilesNothingIsFound) {
  EXPECT_THAT(Check(), IsEmpty());
}

TEST(TheClock, IsAWarningWhenItIsNotSynchronised) {
  Recorder recorder;
  JudgeClock(TIME_OK, 0, recorder.findings);
  EXPECT_THAT(recorder.texts, IsEmpty());
  JudgeClock(TIME_ERROR, 0, recorder.findings);
  JudgeClock(TIME_OK, STA_UNSYNC, recorder.findings);
  EXPECT_THAT(recorder.texts, ::testing::SizeIs(2));
  EXPECT_THAT(recorder.texts[0], ::testing::StartsWith("warning clock is not synchronised"));
  CheckClock(recorder.findings);  // this machine's: whatever it is
}

}  // namespace
}  // namespace muster
