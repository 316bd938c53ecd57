// A shard becomes a directory again, or nothing does.
#include "client/files/directory_layout.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/unique_fd.h"
#include "client/files/entry_meta.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster::files {
namespace {

using testing::HasSubstr;

class LayoutTest : public testing::Test {
 protected:
  LayoutTest() : fd_(open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    entries_.push_back({kStepEntry, Encode({Kind::kStep, 0750, "step-07"}), nullptr, 0});
  }

  void AddFile(const std::string& name, mode_t mode = 0644) {
    entries_.push_back({name, Encode({Kind::kFile, mode, ""}), kText, sizeof(kText) - 1});
  }
  void AddDirectory(const std::string& name, mode_t mode) {
    entries_.push_back({name, Encode({Kind::kDirectory, mode, ""}), nullptr, 0});
  }
  std::string Refused(uint64_t step = 7) {
    const auto laid_out = LayOut(fd_.get(), step, entries_);
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "all or nothing";
    return laid_out ? "accepted" : laid_out.error().message;
  }
  mode_t ModeOf(const std::string& name) {
    struct stat info {};
    return stat((std::filesystem::path(directory_.path()) / name).c_str(), &info) == 0 ? info.st_mode & 07777
                                                                                       : 0;
  }

  static constexpr char kText[] = "some bytes";
  TemporaryDirectory directory_;
  UniqueFd fd_;
  std::vector<ShardEntry> entries_;
};

TEST_F(LayoutTest, EntriesBecomeFilesWithTheirModes) {
  AddDirectory("sub", 0500);
  AddFile("sub/run", 0755);
  AddFile("data", 0400);
  entries_.push_back({"empty", Encode({Kind::kFile, 0644, ""}), nullptr, 0});
  const auto name = LayOut(fd_.get(), 7, entries_);
  ASSERT_TRUE(name) << name.error().message;
  EXPECT_EQ(*name, "step-07");
  std::ostringstream text;
  text << std::ifstream(std::filesystem::path(directory_.path()) / "step-07/sub/run").rdbuf();
  EXPECT_EQ(text.str(), kText);
  EXPECT_EQ(std::filesystem::file_size(std::filesystem::path(directory_.path()) / "step-07/empty"), 0U);
  EXPECT_EQ(ModeOf("step-07"), 0750U);
  EXPECT_EQ(ModeOf("step-07/sub"), 0500U);
  EXPECT_EQ(ModeOf("step-07/sub/run"), 0755U);
  EXPECT_EQ(ModeOf("step-07/data"), 0400U);
}

TEST_F(LayoutTest, AnEmptyDirectoryIsAStepToo) {
  ASSERT_TRUE(LayOut(fd_.get(), 7, entries_));
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(directory_.path()) / "step-07"));
}

TEST_F(LayoutTest, APathThatLeavesTheDirectoryIsRefused) {
  for (const char* name : {"../evil", "/tmp/evil", "a/../../evil", "..", ".", "a//b"}) {
    entries_.resize(1);
    AddFile(name);
    EXPECT_THAT(Refused(), HasSubstr("it is not the path of something below it")) << name;
  }
}

TEST_F(LayoutTest, WhatIsNotADirectoryInOrderIsRefused) {
  AddFile("sub/file");
  EXPECT_EQ(Refused(), "cannot make sub/file: No such file or directory");
  entries_.resize(1);
  AddFile("twice");
  AddFile("twice");
  EXPECT_EQ(Refused(), "cannot make twice: File exists");
  entries_.resize(1);
  entries_.push_back({"x", R"({"dtype": "float32"})", nullptr, 0});
  EXPECT_EQ(Refused(), "entry 'x': it was not saved from files (--gang=files=yes)");
  entries_.resize(1);
  entries_.push_back({"x", Encode({Kind::kStep, 0755, "step-8"}), nullptr, 0});
  EXPECT_EQ(Refused(), "entry 'x': a step in a step");
}

TEST_F(LayoutTest, AShardOfAnotherKindOrStepIsRefused) {
  EXPECT_EQ(Refused(8), "its first entry is not of this step's directory");
  entries_.clear();
  EXPECT_EQ(Refused(), "it was not saved from files (--gang=files=yes)");
  entries_.push_back({"structure", "muster-slice/1 bytes 1 0 0 0 0\n", nullptr, 0});
  EXPECT_EQ(Refused(), "it was not saved from files (--gang=files=yes)");
}

TEST_F(LayoutTest, WhatAnInterruptedOneHasLeftIsTakenAway) {
  std::filesystem::create_directories(std::filesystem::path(directory_.path()) / ".layout/old");
  AddFile("data");
  ASSERT_TRUE(LayOut(fd_.get(), 7, entries_));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(directory_.path()) / ".layout"));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(directory_.path()) / "step-07/old"));
}

TEST_F(LayoutTest, AFullDiskIsSaidBeforeItIsFull) {
  entries_.push_back({"huge", Encode({Kind::kFile, 0644, ""}), kText, size_t{1} << 60});
  EXPECT_THAT(Refused(), HasSubstr("cannot write huge (1152921504606846976 bytes)"));
}

}  // namespace
}  // namespace muster::files
