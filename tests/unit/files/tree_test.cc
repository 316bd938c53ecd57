// Reading and removing a step's directory, friendly and hostile ones.
#include "client/files/directory_tree.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "base/unique_fd.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster::files {
namespace {

using testing::HasSubstr;

class TreeTest : public testing::Test {
 protected:
  TreeTest() : fd_(open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(std::filesystem::path(directory_.path()) / name) << text;
  }
  void Make(const std::string& name) const {
    std::filesystem::create_directories(std::filesystem::path(directory_.path()) / name);
  }
  std::string Refused() {
    const auto tree = ListTree(fd_.get(), false);
    return tree ? "accepted" : tree.error().message;
  }

  TemporaryDirectory directory_;
  UniqueFd fd_;
};

TEST_F(TreeTest, EqualTreesAreListedInEqualOrderDirectoriesFirst) {
  Write("b", "22");
  Make("a/deep");
  Write("a/deep/file", "333");
  Write("a.txt", "");
  const auto tree = ListTree(fd_.get(), false);
  ASSERT_TRUE(tree);
  std::vector<std::string> paths;
  for (const TreeEntry& entry : tree->entries) paths.push_back(entry.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"a", "a/deep", "a/deep/file", "a.txt", "b"}));
  EXPECT_EQ(tree->bytes, 5U);
}

TEST_F(TreeTest, TheMarkIsNoPartOfTheStepElsewhereItIs) {
  Write("commit", "");
  Make("sub");
  Write("sub/commit", "");
  const auto tree = ListTree(fd_.get(), true);
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->entries.size(), 2U);
  EXPECT_EQ(tree->entries[1].path, "sub/commit");
}

TEST_F(TreeTest, WhereNoMarkHasClosedItItsNameIsLikeAnyOther) {
  Write("commit", "3f2a");
  const auto tree = ListTree(fd_.get(), false);
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->entries.size(), 1U);
  EXPECT_EQ(tree->entries[0].path, "commit");
  EXPECT_EQ(tree->bytes, 4U);
}

TEST_F(TreeTest, AMarkWithContentIsRefusedForItWouldBeLost) {
  const auto refused = [&] {
    const auto tree = ListTree(fd_.get(), true);
    return tree ? "accepted" : tree.error().message;
  };
  const auto path = std::filesystem::path(directory_.path()) / "commit";
  Write("commit", "3f2a");
  EXPECT_THAT(refused(), HasSubstr("commit is not the empty file that closes a step"));
  std::filesystem::remove(path);
  Make("commit");
  EXPECT_THAT(refused(), HasSubstr("commit is not the empty file that closes a step"));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/null", path);
  EXPECT_THAT(refused(), HasSubstr("commit is not the empty file that closes a step"));
  // It may get its content while the step is read.
  std::filesystem::remove(path);
  Write("commit", "");
  const auto tree = ListTree(fd_.get(), true);
  ASSERT_TRUE(tree);
  EXPECT_TRUE(CheckUnchanged(fd_.get(), *tree));
  Write("commit", "3f2a");
  EXPECT_FALSE(CheckUnchanged(fd_.get(), *tree));
}

TEST_F(TreeTest, WhatIsNeitherFileNorDirectoryIsNamed) {
  const auto path = [&](const char* name) {
    return (std::filesystem::path(directory_.path()) / name).string();
  };
  ASSERT_EQ(symlink("/etc/passwd", path("x").c_str()), 0);
  EXPECT_EQ(Refused(), "x is a symbolic link; only files and directories can be in a checkpoint");
  ASSERT_EQ(unlink(path("x").c_str()), 0);
  ASSERT_EQ(mkfifo(path("x").c_str(), 0600), 0);
  EXPECT_THAT(Refused(), HasSubstr("x is a pipe"));
  ASSERT_EQ(unlink(path("x").c_str()), 0);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", path("x").c_str());
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(Refused(), HasSubstr("x is a socket"));
}

TEST_F(TreeTest, MoreThanItsLimitIsRefused) {
  Make("many");
  const UniqueFd many(
      open((std::filesystem::path(directory_.path()) / "many").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (size_t i = 0; i < kMaxEntries; ++i) {
    const UniqueFd file(openat(many.get(), std::to_string(i).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file.valid());
  }
  EXPECT_EQ(Refused(), "there are more than 65536 files and directories in it");
}

TEST_F(TreeTest, AFileIsReadWhole) {
  const std::string text(3'000'000, 'x');
  Write("file", text);
  const auto tree = ListTree(fd_.get(), false);
  std::string read(text.size(), '\0');
  ASSERT_TRUE(ReadFile(fd_.get(), tree->entries[0], read.data()));
  EXPECT_EQ(read, text);
}

TEST_F(TreeTest, WhatWasChangedSinceItWasListedIsNotTaken) {
  for (const char* how : {"longer", "shorter", "another", "gone", "link", "pipe"}) {
    std::filesystem::remove(std::filesystem::path(directory_.path()) / "file");
    Write("file", "12345");
    const auto tree = ListTree(fd_.get(), false);
    const std::string what = how;
    const auto path = std::filesystem::path(directory_.path()) / "file";
    if (what == "longer") Write("file", "123456");
    if (what == "shorter") std::filesystem::resize_file(path, 2);
    if (what != "longer" && what != "shorter") std::filesystem::remove(path);
    if (what == "another") Write("file", "54321");
    if (what == "link") std::filesystem::create_symlink("/etc/passwd", path);
    if (what == "pipe") {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    }
    std::string read(5, '\0');
    EXPECT_FALSE(ReadFile(fd_.get(), tree->entries[0], read.data())) << how;
  }
}

TEST_F(TreeTest, AFileThatComesOrGoesWhileItIsReadIsSeen) {
  Make("sub");
  Write("sub/a", "1");
  const auto tree = ListTree(fd_.get(), false);
  EXPECT_TRUE(CheckUnchanged(fd_.get(), *tree));
  Write("sub/b", "2");
  const Status status = CheckUnchanged(fd_.get(), *tree);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "sub was changed while it was read");
}

TEST_F(TreeTest, ATreeIsRemovedAlsoWhenItsProgramHasClosedDirectories) {
  Make("tree/closed/in");
  Write("tree/closed/in/file", "1");
  std::filesystem::create_symlink(std::filesystem::path(directory_.path()) / "kept",
                                  std::filesystem::path(directory_.path()) / "tree/link");
  Make("kept");
  Write("kept/file", "1");
  ASSERT_EQ(chmod((std::filesystem::path(directory_.path()) / "tree/closed/in").c_str(), 0), 0);
  ASSERT_EQ(chmod((std::filesystem::path(directory_.path()) / "tree/closed").c_str(), 0), 0);
  const Status status = RemoveTree(fd_.get(), "tree");
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(directory_.path()) / "tree"));
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(directory_.path()) / "kept/file"))
      << "no link is followed";
  EXPECT_TRUE(RemoveTree(fd_.get(), "tree")) << "what is not there is removed";
  EXPECT_TRUE(Empty(fd_.get()));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace muster::files
