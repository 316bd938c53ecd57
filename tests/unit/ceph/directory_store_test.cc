#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/ceph/store_contract.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Store> Open(const std::string& path, int timeout = 5) {
  StoreOptions options;
  options.url = "dir:" + path;
  options.operation_timeout_seconds = timeout;
  auto store = OpenStore(options);
  EXPECT_TRUE(store) << store.error().message;
  return store ? std::move(*store) : nullptr;
}

std::unique_ptr<Store> OpenFresh() {
  static const TemporaryDirectory root;
  static int count = 0;
  return Open(root.path() + "/store" + std::to_string(count++));
}

INSTANTIATE_TEST_SUITE_P(Directory, StoreContract, testing::Values(MakeStore(&OpenFresh)));

// Runs `body` in a child whose files cannot grow beyond `bytes`; gives the wait status.
template <typename Body>
int RunWithFileLimit(rlim_t bytes, bool survive, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGXFSZ, survive ? SIG_IGN : SIG_DFL);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

size_t FilesBelow(const std::string& path) {
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) count += entry.is_regular_file() ? 1 : 0;
  return count;
}

TEST(DirectoryStore, AWriterThatDiesInTheMiddleLeavesTheOldContent) {
  const TemporaryDirectory root;
  ASSERT_TRUE(Open(root.path())->Write({"u1", "data/o"}, "old"));
  const int status = RunWithFileLimit(1 << 20, false, [&] {
    StoreOptions options;
    options.url = "dir:" + root.path();
    auto store = OpenStore(options);
    return (*store)->Write({"u1", "data/o"}, std::string(4 << 20, 'n')) ? 0
                                                                        : 1;  // killed by SIGXFSZ in write(2)
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  const auto store = Open(root.path());
  EXPECT_EQ(*store->Read({"u1", "data/o"}), "old");
  EXPECT_EQ(FilesBelow(root.path() + "/u1"), 2u);  // with what it left behind
  EXPECT_EQ(*store->List("u1", ""), std::vector<std::string>{"data/o"});
}

TEST(DirectoryStore, AFullDiskIsExhaustedAndLeavesNothingBehind) {
  const TemporaryDirectory root;
  ASSERT_TRUE(Open(root.path())->Write({"u1", "o"}, "old"));
  const int status = RunWithFileLimit(1 << 20, true, [&] {
    StoreOptions options;
    options.url = "dir:" + root.path();
    auto store = OpenStore(options);
    const Status written = (*store)->Write({"u1", "o"}, std::string(4 << 20, 'n'));
    return !written && written.error().code == Errc::kExhausted ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*Open(root.path())->Read({"u1", "o"}), "old");
  EXPECT_EQ(FilesBelow(root.path() + "/u1"), 1u);
}

TEST(DirectoryStore, ListingRemovesWhatDeadWritersLeftLongAgo) {
  const TemporaryDirectory root;
  const auto store = Open(root.path());
  ASSERT_TRUE(store->Write({"u1", "data/o"}, "x"));
  const std::string left = root.path() + "/u1/objects/data/.new-0123456789abcdef";
  std::ofstream(left) << "half";
  EXPECT_TRUE(store->List("u1", ""));
  EXPECT_TRUE(fs::exists(left));  // its writer may be at work
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(48));
  EXPECT_TRUE(store->List("u1", ""));
  EXPECT_FALSE(fs::exists(left));
}

TEST(DirectoryStore, SpacesAreTheOwnersAlone) {
  const TemporaryDirectory root;
  ASSERT_TRUE(Open(root.path())->Write({"u1", "data/o"}, "x"));
  struct stat info {};
  ASSERT_EQ(::stat((root.path() + "/u1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(::stat((root.path() + "/u1/objects/data/o").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST(DirectoryStore, SymbolicLinksAreNotFollowed) {
  const TemporaryDirectory root;
  const TemporaryDirectory elsewhere;
  const auto store = Open(root.path());
  ASSERT_TRUE(store->Write({"u1", "data/o"}, "x"));
  fs::create_directory_symlink(elsewhere.path(), root.path() + "/u1/objects/link");
  EXPECT_FALSE(store->Write({"u1", "link/o"}, "x"));
  std::ofstream(elsewhere.path() + "/secret") << "secret";
  fs::create_symlink(elsewhere.path() + "/secret", root.path() + "/u1/objects/data/link");
  EXPECT_FALSE(store->Read({"u1", "data/link"}));
  EXPECT_FALSE(fs::exists(elsewhere.path() + "/o"));
}

TEST(DirectoryStore, RemovingTheLastObjectRemovesItsDirectories) {
  const TemporaryDirectory root;
  const auto store = Open(root.path());
  ASSERT_TRUE(store->Write({"u1", "data/k/1.1.1/0.0"}, "x"));
  ASSERT_TRUE(store->Write({"u1", "data/k/2.1.1/0.0"}, "x"));
  ASSERT_TRUE(store->Remove({"u1", "data/k/1.1.1/0.0"}));
  EXPECT_FALSE(fs::exists(root.path() + "/u1/objects/data/k/1.1.1"));
  EXPECT_TRUE(fs::exists(root.path() + "/u1/objects/data/k/2.1.1/0.0"));
  ASSERT_TRUE(store->Remove({"u1", "data/k/2.1.1/0.0"}));
  EXPECT_FALSE(fs::exists(root.path() + "/u1/objects/data"));
  EXPECT_TRUE(fs::exists(root.path() + "/u1/objects"));
}

TEST(DirectoryStore, WritersAndRemoversOfOneDirectoryDoNotDisturbEachOther) {
  const TemporaryDirectory root;
  const auto store = Open(root.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const ObjectName name{"u1", "data/k/1.1.1/" + std::to_string(t)};
        const Status written = store->Write(name, "x");
        EXPECT_TRUE(written) << written.error().message;
        EXPECT_TRUE(store->Remove(name));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DirectoryStore, AnIdIsTheSameForAllWhoUseTheDirectoryAndForNobodyElse) {
  const TemporaryDirectory root;
  const TemporaryDirectory other;
  const std::string id = Open(root.path())->Id();
  EXPECT_TRUE(id.starts_with("dir:")) << id;
  EXPECT_EQ(Open(root.path())->Id(), id);
  EXPECT_NE(Open(other.path())->Id(), id);
  EXPECT_EQ(FilesBelow(root.path()), 1U) << "the number's file alone";
  for (const char* bad : {"", "0123456789abcdeg", "0123456789abcdef0"}) {
    std::ofstream(root.path() + "/.number", std::ios::trunc) << bad;
    EXPECT_EQ(Open(root.path())->Id(), "") << bad;
  }
}

TEST(DirectoryStore, ALockThatIsNeverReleasedEndsInUnavailable) {
  const TemporaryDirectory root;
  const auto store = Open(root.path(), 1);
  ASSERT_TRUE(store->UpdateHead({"u1", "gang/a"}, {std::nullopt, "f", {}, {}}));
  std::FILE* lock = std::fopen((root.path() + "/u1/heads/.lock").c_str(), "r+");
  ASSERT_NE(lock, nullptr);
  ASSERT_EQ(::flock(::fileno(lock), LOCK_EX), 0);
  const Status status = store->UpdateHead({"u1", "gang/a"}, {"f", "g", {}, {}});
  EXPECT_EQ(status.error().code, Errc::kUnavailable);
  EXPECT_TRUE(store->ReadHead({"u1", "gang/a"}));  // readers do not wait
  std::fclose(lock);
  EXPECT_TRUE(store->UpdateHead({"u1", "gang/a"}, {"f", "g", {}, {}}));
}

TEST(DirectoryStore, AHeadFileThatIsNoHeadIsCorrupt) {
  const TemporaryDirectory root;
  const auto store = Open(root.path());
  ASSERT_TRUE(store->UpdateHead({"u1", "gang/a"}, {std::nullopt, "f", {}, {}}));
  for (const char* text : {"", "{", "[]", "{\"version\":2}", "{\"version\":1,\"fence\":3,\"entries\":{}}",
                           "{\"version\":1,\"fence\":\"f\",\"entries\":{\"a\":1}}"}) {
    std::ofstream(root.path() + "/u1/heads/gang/a", std::ios::trunc) << text;
    EXPECT_EQ(store->ReadHead({"u1", "gang/a"}).error().code, Errc::kCorrupt) << text;
    EXPECT_EQ(store->UpdateHead({"u1", "gang/a"}, {"f", "g", {}, {}}).error().code, Errc::kCorrupt) << text;
  }
}

TEST(OpenStore, SaysWhatIsWrongWithAUrl) {
  for (const char* url : {"", "dir", "dir:", "ftp:x", "/var/lib/muster"}) {
    StoreOptions options;
    options.url = url;
    const auto store = OpenStore(options);
    ASSERT_FALSE(store) << url;
    EXPECT_EQ(store.error().code, Errc::kInvalid);
    EXPECT_NE(store.error().message.find("dir:/PATH"), std::string::npos) << store.error().message;
  }
  StoreOptions relative;
  relative.url = "dir:relative";
  EXPECT_EQ(OpenStore(relative).error().code, Errc::kInvalid);
  StoreOptions missing;
  missing.url = "dir:/nonexistent/deep/store";
  EXPECT_EQ(OpenStore(missing).error().code, Errc::kNotFound);
}

}  // namespace
}  // namespace muster
