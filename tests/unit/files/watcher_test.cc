// What becomes of the steps that a program closes, against a musterd of the test's own.
#include "client/files/watcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster::files {
namespace {

using testing::HasSubstr;

class WatcherTest : public Libmuster {
 protected:
  void SetUp() override {
    Libmuster::SetUp();
    std::filesystem::create_directory(top_);
    fd_.reset(open(top_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    musterd_.Change([](auto& rules) { rules.reconnect_ms = 1000; });
    Open();
    watcher_ =
        std::make_unique<Watcher>(m_, fd_.get(), [this](const std::string& what) { said_.push_back(what); });
    Restored nothing;
    nothing.step = MUSTER_LATEST;
    const Status begun = watcher_->Begin(nothing, top_.string());
    ASSERT_TRUE(begun) << begun.error().message;
  }

  void Write(const std::string& name, const std::string& text = "") const {
    std::filesystem::create_directories((top_ / name).parent_path());
    std::ofstream(top_ / name) << text;
  }
  [[nodiscard]] bool IsThere(const std::string& name) const {
    return std::filesystem::exists(std::filesystem::symlink_status(top_ / name));
  }
  [[nodiscard]] std::string TextOf(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(top_ / name).rdbuf();
    return text.str();
  }
  bool WaitFor(const std::string& name) {
    return Eventually([&] {
      watcher_->Advance();
      return IsThere(name);
    });
  }
  // Long enough for what must not happen.
  void Watch() {
    for (int i = 0; i < 50; ++i) {
      watcher_->Advance();
      ::usleep(1000);
    }
  }
  std::string ShardOf(uint64_t step) {
    std::string shard;
    musterd_.Look([&](const FakeMusterd& musterd) {
      if (const auto found = musterd.shards.find(step); found != musterd.shards.end()) shard = found->second;
    });
    return shard;
  }

  const std::filesystem::path top_ = std::filesystem::path(directory_.path()) / "top";
  UniqueFd fd_;
  std::vector<std::string> said_;
  std::unique_ptr<Watcher> watcher_;
};

TEST_F(WatcherTest, WhatIsCalledCommitInARenamedDirectoryIsSaved) {
  Write("work/commit", "the hash of the source");
  std::filesystem::rename(top_ / "work", top_ / "step-1");
  ASSERT_TRUE(WaitFor("committed.step-1")) << TextOf("failed.step-1");
  EXPECT_THAT(ShardOf(1), HasSubstr("the hash of the source"));
}

TEST_F(WatcherTest, AMarkWithContentIsNotLostButRefused) {
  Write("step-1/data", "state");
  Watch();
  Write("step-1/commit", "the hash of the source");
  ASSERT_TRUE(WaitFor("failed.step-1"));
  EXPECT_THAT(TextOf("failed.step-1"), HasSubstr("commit is not the empty file that closes a step"));
}

TEST_F(WatcherTest, AStepThatHasFailedIsSavedWhenItsMarkIsMadeAnew) {
  Write("step-1/data", "state");
  std::filesystem::create_symlink("x", top_ / "step-1/link");
  Write("step-1/commit");
  ASSERT_TRUE(WaitFor("failed.step-1"));
  Watch();
  EXPECT_EQ(said_.size(), 1U) << "once";
  std::filesystem::remove(top_ / "step-1/link");
  Watch();
  EXPECT_TRUE(IsThere("failed.step-1")) << "nobody has closed it again";
  std::filesystem::remove(top_ / "step-1/commit");
  Write("step-1/commit");
  ASSERT_TRUE(WaitFor("committed.step-1"));
  EXPECT_FALSE(IsThere("failed.step-1"));
  EXPECT_THAT(ShardOf(1), HasSubstr("state"));
}

TEST_F(WatcherTest, OneThatWasRenamedIsSavedWithAMarkOrByRenamingItAgain) {
  for (const bool mark : {true, false}) {
    const std::string step = mark ? "step-1" : "step-2";
    Write("work/data", "state");
    std::filesystem::create_symlink("x", top_ / "work/link");
    std::filesystem::rename(top_ / "work", top_ / step);
    ASSERT_TRUE(WaitFor("failed." + step));
    std::filesystem::remove(top_ / step / "link");
    if (mark) {
      Write(step + "/commit");
    } else {
      std::filesystem::rename(top_ / step, top_ / "work");
      std::filesystem::rename(top_ / "work", top_ / step);
    }
    ASSERT_TRUE(WaitFor("committed." + step));
    EXPECT_FALSE(IsThere("failed." + step));
  }
}

TEST_F(WatcherTest, WhatIsSaidOfAStepIsOneThing) {
  Write("work/data");
  std::filesystem::rename(top_ / "work", top_ / "step-1");
  ASSERT_TRUE(WaitFor("committed.step-1"));
  // A step is saved once.
  Write("work/data", "another");
  std::filesystem::rename(top_ / "step-1", top_ / "old");
  std::filesystem::rename(top_ / "work", top_ / "step-1");
  ASSERT_TRUE(WaitFor("failed.step-1"));
  EXPECT_THAT(TextOf("failed.step-1"), HasSubstr("step 1 is committed already"));
  EXPECT_FALSE(IsThere("committed.step-1"));
}

TEST_F(WatcherTest, AMusterdThatIsAwayForLongIsWaitedFor) {
  musterd_.Stop();
  const auto away = [&] { return muster_save_begin_nowait(m_, 1, 0) == MUSTER_E_UNREACHABLE; };
  ASSERT_TRUE(Eventually([&] {
    muster_save_abort(m_);
    return away();
  }));
  Write("work/data", "state");
  std::filesystem::rename(top_ / "work", top_ / "step-1");
  Watch();
  EXPECT_TRUE(away()) << Said();
  EXPECT_EQ(TextOf("failed.step-1"), "");
  // One that has been restarted does not know its gangs yet. While it has not answered the first hello saves are taken.
  musterd_.Change([](auto& rules) { rules.refusal = wire::Refusal::kNoGang; });
  musterd_.Start();
  ASSERT_TRUE(Eventually([&] {
    muster_save_abort(m_);
    return muster_save_begin_nowait(m_, 1, 0) == MUSTER_E_NO_GANG;
  }));
  Watch();
  EXPECT_EQ(TextOf("failed.step-1"), "");
  EXPECT_FALSE(watcher_->Drained()) << "it is still to be saved";
  musterd_.Change([](auto& rules) { rules.refusal = {}; });
  EXPECT_TRUE(WaitFor("committed.step-1"));
}

TEST_F(WatcherTest, ASaveThatMemoryDoesNotSufficeForIsSaidToHaveFailed) {
  // The list of these names outgrows what a save has room for at first, when it is handed over.
  for (int i = 0; i < 15'000; ++i) Write("work/" + std::to_string(i) + std::string(150, 'n'));
  struct rlimit limit {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  struct rlimit low = limit;
  low.rlim_cur = 2 << 20;
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  std::filesystem::rename(top_ / "work", top_ / "step-1");
  const bool failed = WaitFor("failed.step-1");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_TRUE(failed);
  EXPECT_THAT(TextOf("failed.step-1"), HasSubstr("no memory for a shard"));
  EXPECT_TRUE(watcher_->Drained());
}

}  // namespace
}  // namespace muster::files
