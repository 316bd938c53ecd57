#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/health/recorder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

class Disks : public ::testing::Test {
 protected:
  Disks() {
    options_.disk_free_percent = 0;
    tree_.Write("disk/file", "");
    tree_.Write("state/file", "");
    options_.disks = {tree_ / "disk"};
  }
  std::vector<std::string> Check() {
    Recorder recorder;
    CheckDisks(options_, recorder.findings);
    return recorder.texts;
  }
  // As /proc/self/mountinfo, of file systems that are writable but for one.
  void Mounts(const std::string& read_only, const std::string& mount_options = "rw") const {
    std::string text = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n";
    for (const std::string& mount : {tree_ / "disk", tree_ / "disk2", tree_ / "state"}) {
      text += fmt::format("22 21 8:2 / {} {} shared:2 master:1 - xfs /dev/sdb {},noquota\n", mount,
                          mount_options, mount == read_only ? "ro" : "rw");
    }
    tree_.Write("proc/self/mountinfo", text + "half a line\n");
  }
  TemporaryTree tree_;
  HealthOptions options_ = QuietOptions(tree_);
};

TEST_F(Disks, WithRoomAreNoFinding) {
  options_.state_dir = tree_ / "state";
  Mounts("");
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Disks, AFullOneIsAWarningAndSickWhereMusterNeedsIt) {
  options_.disk_free_percent = 101;  // nothing has that much
  EXPECT_THAT(Check(),
              ElementsAre(MatchesRegex("warning disk .*/disk has .* MiB free of .* MiB, less than 101 %")));
  options_.state_dir = tree_ / "state";
  options_.disks.clear();
  EXPECT_THAT(Check(), ElementsAre(MatchesRegex("SICK disk .*/state has .* MiB free of .*")));
}

TEST_F(Disks, AReadOnlyFileSystemIsSick) {
  Mounts(tree_ / "disk");
  EXPECT_THAT(Check(), ElementsAre("SICK disk " + (tree_ / "disk") + " is read-only"));
  options_.disks = {tree_ / "disk/below"};
  EXPECT_THAT(Check(), ElementsAre("SICK disk " + (tree_ / "disk/below") + " is read-only"));
}

TEST_F(Disks, AReadOnlyMountOfAWritableFileSystemIsNot) {
  Mounts(tree_ / "disk2", "ro");
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Disks, OneThatIsNotThereIsAWarning) {
  options_.disks = {tree_ / "none"};
  EXPECT_THAT(Check(), ElementsAre("warning disk " + (tree_ / "none") +
                                   " could not be looked at: No such file or directory"));
}

TEST_F(Disks, TheCheckLeavesNothingBehind) {
  Check();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(tree_ / "disk"), {}), 1);
}

}  // namespace
}  // namespace muster
