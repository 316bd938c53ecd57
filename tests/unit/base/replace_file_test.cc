#include "base/replace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "base/small_files.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReplaceFileTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string Read() const { return ReadSmallFile(path_).value_or("(none)"); }
  [[nodiscard]] std::vector<std::string> Files() const { return ListDirectory(directory_.path()); }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/state.json";
};

// Files that grow beyond it are refused in their middle, as on a disk that fills.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_F(ReplaceFileTest, WhatIsThereIsReplacedWithItsModeWhateverTheUmask) {
  const mode_t umask = ::umask(077);
  EXPECT_TRUE(ReplaceFile(path_, "one", 0600));
  EXPECT_TRUE(ReplaceFile(path_, "two", 0644));
  ::umask(umask);
  EXPECT_EQ(Read(), "two");
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644U);
  EXPECT_THAT(Files(), ElementsAre("state.json"));
}

TEST_F(ReplaceFileTest, WhatIsThereStaysWhenTheDiskFillsInTheMiddle) {
  ASSERT_TRUE(ReplaceFile(path_, "one", 0600));
  const SmallDisk disk(4096);
  const Status written = ReplaceFile(path_, std::string(5000, 'x'), 0600);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::kUnavailable);
  EXPECT_EQ(written.error().message, "cannot write " + path_ + ": File too large");
  EXPECT_EQ(Read(), "one");
  EXPECT_THAT(Files(), ElementsAre("state.json"));
}

TEST_F(ReplaceFileTest, WhatACrashHasLeftDoesNotHinder) {
  ASSERT_TRUE(ReplaceFile(path_ + ".new", "of a longer text, a half", 0600));
  EXPECT_TRUE(ReplaceFile(path_, "two", 0600));
  EXPECT_EQ(Read(), "two");
  EXPECT_THAT(Files(), ElementsAre("state.json"));
}

TEST_F(ReplaceFileTest, ALinkIsNotFollowed) {
  ASSERT_TRUE(ReplaceFile(directory_.path() + "/victim", "mine", 0600));
  std::filesystem::create_symlink("victim", path_ + ".new");
  EXPECT_FALSE(ReplaceFile(path_, "two", 0600));
  EXPECT_EQ(ReadLine(directory_.path() + "/victim"), "mine");
}

TEST_F(ReplaceFileTest, ADirectoryThatIsNotThereIsNamed) {
  const Status written = ReplaceFile(directory_.path() + "/away/state", "one", 0600);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::kNotFound);
  EXPECT_THAT(written.error().message, HasSubstr("/away/state: No such file or directory"));
}

}  // namespace
}  // namespace muster
