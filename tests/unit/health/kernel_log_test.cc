#include "daemon/health/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "tests/unit/health/temporary_tree.h"

namespace muster {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMicroseconds = 1'000'000;        // in one
constexpr int64_t kBoot = 1'700'000'000 * kSecond;  // CLOCK_REALTIME when the machine started

std::string Xid(uint64_t sequence, int64_t log_us, int xid) {
  return fmt::format(
      "3,{},{},-;NVRM: Xid (PCI:0000:3b:00): {}, x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", sequence,
      log_us, xid);
}

class KernelLogTest : public ::testing::Test {
 protected:
  KernelLogTest() { EXPECT_EQ(::mkfifo(fifo_.c_str(), 0600), 0); }

  // A log that goes on, as /dev/kmsg does. The fake clocks stand still until they are set.
  void OpenFifo() {
    writer_.reset(::open(fifo_.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(writer_.valid());
    Write(backlog_);
    log_.Open(fifo_);
  }
  void Write(const std::string& text) const {
    ASSERT_EQ(::write(writer_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Until `count` facts were heard.
  void RunUntil(size_t count) {
    wanted_ = count;
    if (heard_.size() >= wanted_) return;
    const Loop::TimerId deadline = loop_.After(std::chrono::seconds(60), [this] { loop_.Stop(); });
    loop_.Run();
    loop_.Cancel(deadline);
    ASSERT_GE(heard_.size(), wanted_);
  }

  TemporaryTree tree_;
  std::string fifo_ = tree_ / "kmsg";
  std::string backlog_;
  UniqueFd writer_;
  int64_t uptime_ns_ = 1'000 * kSecond;
  Loop loop_;
  KernelLog log_{loop_, {[this] { return kBoot + uptime_ns_; }, [this] { return uptime_ns_; }}};
  std::vector<KernelFact> heard_;
  size_t wanted_ = 0;
  std::function<void()> then_;  // after the first fact

  void Listen() {
    log_.OnFact([this](const KernelFact& fact) {
      heard_.push_back(fact);
      if (then_) std::exchange(then_, nullptr)();
      if (heard_.size() >= wanted_) loop_.Stop();
    });
  }
};

TEST_F(KernelLogTest, WhatComesIsHeardAndFoundByTime) {
  Listen();
  OpenFifo();
  uptime_ns_ = 999 * kSecond + kSecond / 2;
  Write("6,1,999500000,-;something else\n" + Xid(2, 999'500'000, 79));
  then_ = [this] {
    uptime_ns_ = 1'000 * kSecond;
    Write(Xid(3, 1'000'000'000, 45));
  };
  RunUntil(2);
  EXPECT_EQ(heard_[0].xid, 79U);
  EXPECT_EQ(heard_[0].sequence, 2U);
  const auto near = log_.Near(kBoot + 1'000 * kSecond, kSecond, 0);
  ASSERT_EQ(near.size(), 2U);
  EXPECT_EQ(near[0].xid, 79U) << "oldest first";
  EXPECT_EQ(near[0].time_ns, kBoot + 999'500'000'000);
  EXPECT_EQ(near[1].time_ns, kBoot + 1'000 * kSecond);
  EXPECT_EQ(log_.Near(kBoot + 1'000 * kSecond, kSecond / 4, 0).size(), 1U);
  EXPECT_EQ(log_.Near(kBoot + 999 * kSecond, 0, kSecond / 2).size(), 1U);
  EXPECT_TRUE(log_.Near(kBoot + 990 * kSecond, kSecond, kSecond).empty());
}

TEST_F(KernelLogTest, WhatWasThereBeforeIsKeptAndNotHeard) {
  Listen();
  backlog_ = Xid(1, 990'000'000, 48);
  OpenFifo();
  EXPECT_TRUE(heard_.empty());
  const auto near = log_.Near(kBoot + 990 * kSecond, kSecond, kSecond);
  ASSERT_EQ(near.size(), 1U);
  EXPECT_EQ(near[0].time_ns, kBoot + 990 * kSecond);
}

TEST_F(KernelLogTest, ARecordInPiecesIsOne) {
  Listen();
  OpenFifo();
  const std::string record = Xid(1, 1'000'000'000, 79);
  for (const char c : record) {
    Write(std::string(1, c));
    loop_.Post([] {});
  }
  RunUntil(1);
  EXPECT_EQ(heard_[0].xid, 79U);
}

TEST_F(KernelLogTest, TheDriftOfTheLogsClockIsLearntFromTheFirstLiveRecord) {
  Listen();
  uptime_ns_ = 1'000'000 * kSecond;  // eleven days
  backlog_ = Xid(1, (999'900 - 52) * kMicroseconds, 48);
  OpenFifo();
  Write(Xid(2, (1'000'000 - 52) * kMicroseconds, 79));
  RunUntil(1);
  EXPECT_EQ(heard_[0].time_ns, kBoot + 1'000'000 * kSecond);
  EXPECT_EQ(log_.Near(kBoot + 999'900 * kSecond, 0, 0).size(), 1U) << "the fact from before is corrected too";
}

TEST_F(KernelLogTest, ALoopThatWasStalledDoesNotMoveFacts) {
  Listen();
  uptime_ns_ = 1'000'000 * kSecond;
  OpenFifo();
  Write(Xid(1, (1'000'000 - 52) * kMicroseconds, 48));
  then_ = [this] {
    // Happens after one second, is read after nine.
    uptime_ns_ = 1'000'009 * kSecond;
    Write(Xid(2, (1'000'001 - 52) * kMicroseconds, 79));
  };
  RunUntil(2);
  EXPECT_EQ(heard_[1].time_ns, kBoot + 1'000'001 * kSecond);
}

TEST_F(KernelLogTest, ADelayIsNotTakenForMoreDriftThanTheUptimeAllows) {
  Listen();
  uptime_ns_ = 1'030 * kSecond;
  OpenFifo();
  Write(Xid(1, 1'000 * kMicroseconds, 48));
  RunUntil(1);
  EXPECT_NEAR(static_cast<double>(heard_[0].time_ns - kBoot), 1'000.0 * kSecond, 0.21 * kSecond);
}

TEST_F(KernelLogTest, KeepsTheLastFactsOnly) {
  for (uint64_t i = 0; i < KernelLog::kCapacity + 10; ++i) {
    backlog_ += Xid(i, static_cast<int64_t>(i), 79);
  }
  tree_.Write("file", backlog_);
  log_.Open(tree_ / "file");
  const auto all = log_.Near(kBoot, kSecond, kSecond);
  ASSERT_EQ(all.size(), KernelLog::kCapacity);
  EXPECT_EQ(all.front().sequence, 10U);
}

TEST_F(KernelLogTest, RubbishAndLongLinesArePassedOver) {
  std::string text = "garbage\n;\n\n 1,2,3;x\n" + std::string(100'000, 'x') + "\n";
  text += std::string("3,1,1,-;\0\x01NVRM\n", 15) + Xid(5, 999'000'000, 79) +
          "3,6,999000000,-;NVRM: Xid (PCI:0000:3b";
  tree_.Write("file", text);
  log_.Open(tree_ / "file");
  const auto all = log_.Near(kBoot, 0, 2'000 * kSecond);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].sequence, 5U);
}

TEST_F(KernelLogTest, OneThatEndsIsReadNoMore) {
  Listen();
  writer_.reset(::open(fifo_.c_str(), O_RDWR | O_CLOEXEC));
  log_.Open(fifo_);
  Write(Xid(1, 1'000'000'000, 79));
  writer_.reset();
  RunUntil(1);
  EXPECT_EQ(log_.Near(kBoot, 0, 2'000 * kSecond).size(), 1U);
}

TEST_F(KernelLogTest, OneThatMayNotBeReadGivesNothing) {
  log_.Open(tree_ / "none");
  EXPECT_FALSE(log_.open());
  EXPECT_TRUE(log_.Near(kBoot, kBoot, kBoot).empty());
}

TEST_F(KernelLogTest, WhatIsNoLogGivesNothing) {
  log_.Open("/dev/null");
  EXPECT_TRUE(log_.Near(kBoot, kBoot, kBoot).empty());
  KernelLog directory(loop_);
  directory.Open(tree_.path());
  KernelLog nowhere(loop_);
  nowhere.Open("");
  EXPECT_FALSE(nowhere.open());
}

}  // namespace
}  // namespace muster
