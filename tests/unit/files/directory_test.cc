// The directory of a member, where others write too.
#include "client/files/directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/ceph/temporary_directory.h"

namespace muster::files {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class DirectoryTest : public testing::Test {
 protected:
  [[nodiscard]] std::string base() const { return directory_.path(); }
  [[nodiscard]] fs::path At(const std::string& name) const {
    return std::filesystem::path(directory_.path()) / name;
  }
  TemporaryDirectory directory_;
};

TEST_F(DirectoryTest, ItIsMadeForItsUserAlone) {
  const auto own = OpenOwn(base(), "mine");
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(own->path, base() + "/mine");
  struct stat info {};
  ASSERT_EQ(stat(own->path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST_F(DirectoryTest, OneThatIsThereIsTakenAndClosedToOthers) {
  fs::create_directory(At("mine"));
  ASSERT_EQ(chmod(At("mine").c_str(), 0777), 0);
  ASSERT_TRUE(OpenOwn(base(), "mine"));
  struct stat info {};
  ASSERT_EQ(stat(At("mine").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST_F(DirectoryTest, ALinkAFileAndAnothersDirectoryAreRefused) {
  fs::create_directory(At("elsewhere"));
  fs::create_symlink(At("elsewhere"), At("link"));
  EXPECT_FALSE(OpenOwn(base(), "link"));
  std::ofstream(At("file")) << "x";
  EXPECT_FALSE(OpenOwn(base(), "file"));
  if (geteuid() == 0) {
    fs::create_directory(At("other"));
    ASSERT_EQ(chown(At("other").c_str(), 12345, 12345), 0);
    const auto own = OpenOwn(base(), "other");
    ASSERT_FALSE(own);
    EXPECT_THAT(own.error().message, HasSubstr("/other belongs to another user"));
    EXPECT_FALSE(RemoveOwn(base(), "other"));
    EXPECT_TRUE(fs::exists(At("other")));
  }
}

TEST_F(DirectoryTest, ABaseThatIsNotThereIsNamedWithWhatChoosesIt) {
  const auto own = OpenOwn(base() + "/none", "mine");
  ASSERT_FALSE(own);
  EXPECT_THAT(own.error().message, HasSubstr("/none: No such file or directory"));
  EXPECT_THAT(own.error().message, HasSubstr("MUSTER_FILES_DIR"));
}

TEST_F(DirectoryTest, WhatNobodyUsesAnyMoreIsRemoved) {
  for (const char* name : {"p@left", "p@used", "p@mine", "q@other"}) {
    fs::create_directory(At(name));
    std::ofstream(At(name) / "file") << "x";
  }
  fs::create_symlink(At("q@other"), At("p@link"));
  const UniqueFd used(open(At("p@used").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(used.get(), LOCK_SH), 0);
  RemoveLeftBehind(base(), "p@", "p@mine");
  EXPECT_FALSE(fs::exists(At("p@left")));
  EXPECT_TRUE(fs::exists(At("p@used") / "file"));
  EXPECT_TRUE(fs::exists(At("p@mine") / "file"));
  EXPECT_TRUE(fs::exists(At("q@other") / "file"));
  EXPECT_TRUE(fs::exists(At("p@link") / "file"));
}

TEST_F(DirectoryTest, WhatIsOpenIsLockedForOthers) {
  const auto own = OpenOwn(base(), "p@mine");
  ASSERT_TRUE(own);
  RemoveLeftBehind(base(), "p@", "p@another");
  EXPECT_TRUE(fs::exists(At("p@mine")));
}

TEST_F(DirectoryTest, AtTheEndItIsRemoved) {
  fs::create_directories(At("mine/step-1/sub"));
  EXPECT_TRUE(RemoveOwn(base(), "mine"));
  EXPECT_FALSE(fs::exists(At("mine")));
  EXPECT_TRUE(RemoveOwn(base(), "mine"));
}

}  // namespace
}  // namespace muster::files
