// The directory store when a call of the kernel fails, at each step of a commit: what the head lists is whole after it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/sample_manifest.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace {

// Of the calls that change something, while they are counted: so many succeed, and the next one fails with `error`.
std::atomic<int> g_left{-1};  // below 0: none fails
std::atomic<int> g_error{0};
std::atomic<bool> g_failed{false};

bool Fails() {
  if (g_left < 0 || g_left-- > 0) return false;
  g_left = -1;
  g_failed = true;
  errno = g_error;
  return true;
}

}  // namespace

// In the place of libc's, for all of this program.
extern "C" {
// Nothing here looks at what a power failure leaves.
int fsync(int /*fd*/) {
  return Fails() ? -1 : 0;
}
int renameat(int from, const char* old_path, int to, const char* new_path) {
  return Fails() ? -1 : static_cast<int>(::syscall(SYS_renameat, from, old_path, to, new_path));
}
int mkdirat(int fd, const char* path, mode_t mode) {
  return Fails() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, fd, path, mode));
}
ssize_t write(int fd, const void* data, size_t bytes) {
  return Fails() ? -1 : ::syscall(SYS_write, fd, data, bytes);
}
int openat(int fd, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if ((flags & O_CREAT) != 0 && Fails()) return -1;
  return static_cast<int>(::syscall(SYS_openat, fd, path, flags, mode));
}
}

namespace muster {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<Store> Open(const std::string& path) {
  auto store = OpenStore({.url = "dir:" + path, .operation_timeout_seconds = 5});
  EXPECT_TRUE(store) << store.error().message;
  return *std::move(store);
}

class DirectoryFaults : public testing::TestWithParam<int> {
 protected:
  // In the store of its own, with two checkpoints, of two that are kept.
  void Begin() {
    root_ = std::make_unique<TemporaryDirectory>();
    store_ = Open(root_->path());
    catalog_ = std::make_unique<Catalog>(store_, "u1", "k");
    ASSERT_TRUE(catalog_->TakeOver("record", "entry"));
    ASSERT_TRUE(catalog_->Advance({1, 0}, fence_, "record"));
    for (const uint64_t step : {1, 2}) ASSERT_TRUE(catalog_->Commit(Written(step), 2));
  }
  // Its objects are there.
  Manifest Written(uint64_t step) {
    Manifest manifest = SampleManifest("k", step, fence_, 1);
    for (const Shard& shard : manifest.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i)
        EXPECT_TRUE(store_->Write({"u1", shard.ObjectOf(i)}, "chunk"));
    }
    return manifest;
  }
  // Does it with the call number `at` failing; false when there are no so many.
  template <typename Do>
  bool FailingAt(int at, Do what) {
    g_failed = false;
    g_error = GetParam();
    g_left = at;
    what();
    g_left = -1;
    return g_failed;
  }
  // As whoever opens the store next finds it.
  std::set<uint64_t> WholeSteps() {
    const auto store = Open(root_->path());
    Catalog catalog(store, "u1", "k");
    const auto head = catalog.Load();
    EXPECT_TRUE(head) << head.error().message;
    std::set<uint64_t> steps;
    for (const CheckpointInfo& info : head->checkpoints) {
      const auto manifest = catalog.LoadManifest(info.step);
      EXPECT_TRUE(manifest) << manifest.error().message;
      if (!manifest) continue;
      for (const Shard& shard : manifest->shards) {
        for (size_t i = 0; i < shard.chunks.size(); ++i)
          EXPECT_TRUE(store->Read({"u1", shard.ObjectOf(i)})) << shard.ObjectOf(i);
      }
      steps.insert(info.step);
    }
    return steps;
  }

  const Fence fence_{1, 1};
  std::unique_ptr<TemporaryDirectory> root_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Catalog> catalog_;
};

TEST_P(DirectoryFaults, LeaveEveryListedCheckpointWholeAtEachStepOfACommit) {
  const std::set<uint64_t> before = {1, 2};
  const std::set<uint64_t> after = {2, 3};
  int at = 0;
  for (bool failed = true; failed; ++at) {
    Begin();
    const Manifest manifest = Written(3);
    Status status;
    failed = FailingAt(at, [&] {
      const auto committed = catalog_->Commit(manifest, 2);
      if (!committed) status = committed.error();
    });
    const std::set<uint64_t> steps = WholeSteps();
    EXPECT_TRUE(steps == after || (!status && steps == before)) << "call " << at << ": " << status.ok();
    if (!status && steps == after) {
      EXPECT_EQ(status.error().code, Errc::kUnavailable);
    }
    const auto again = catalog_->Commit(manifest, 2);
    EXPECT_TRUE(again) << again.error().message;
    EXPECT_EQ(WholeSteps(), after);
    ASSERT_FALSE(HasFailure()) << "call " << at << " has failed";
  }
  EXPECT_GT(at, 6) << "to create, write, sync, rename and sync, of two files";
}

// What is there for every reader, and may not be after a power failure, is neither done nor not done.
TEST_P(DirectoryFaults, BehindARenameAreAnUnknownOutcome) {
  int unknown = 0;
  for (int at = 0;; ++at) {
    Begin();
    Status status;
    const bool failed = FailingAt(at, [&] { status = store_->Write({"u1", "data/k/3.1.1/0.0"}, "new"); });
    if (!failed) break;
    ASSERT_FALSE(status) << "call " << at;
    const bool there = store_->Read({"u1", "data/k/3.1.1/0.0"}).ok();
    if (there) {
      EXPECT_EQ(status.error().code, Errc::kUnavailable);
    }
    unknown += there ? 1 : 0;
  }
  EXPECT_EQ(unknown, 1);
}

// Who comes next would find it, and sync what is in it, but not its own name.
TEST_P(DirectoryFaults, LeaveNoDirectoryThatIsNotDurable) {
  Begin();
  const std::string directory = root_->path() + "/u1/objects/data/k/3.1.1";
  Status status;
  ASSERT_TRUE(FailingAt(1, [&] { status = store_->Write({"u1", "data/k/3.1.1/0.0"}, "new"); }));
  EXPECT_FALSE(status);
  EXPECT_FALSE(fs::exists(directory));
  EXPECT_TRUE(store_->Write({"u1", "data/k/3.1.1/0.0"}, "new"));
}

INSTANTIATE_TEST_SUITE_P(Errors, DirectoryFaults, testing::Values(ENOSPC, EIO, EINVAL),
                         [](const auto& error) { return std::string(::strerrorname_np(error.param)); });

}  // namespace
}  // namespace muster
