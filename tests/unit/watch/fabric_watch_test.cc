#include "daemon/watch/fabric_watch.h"

#include <gmock/gmock.h>

#include <atomic>
#include <ctime>
#include <memory>

#include "daemon/config/config.h"
#include "tests/unit/health/temporary_tree.h"

namespace muster::watch {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

int64_t Realtime() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * PortWatch::kSecond + now.tv_nsec;
}

class FabricWatchTest : public ::testing::Test {
 protected:
  FabricWatchTest() {
    tree_.Write("roce.yaml", "networks: 10.77.0.0/16\n");
    tree_.Write("sys/class/net/fab0/operstate", "up\n");
    tree_.Write("sys/class/net/fab0/carrier_changes", "1\n");
  }
  // Runs until it holds after a sample, or the deadline, which is a failure.
  void RunUntil(std::function<bool()> holds) {
    holds_ = std::move(holds);
    const auto deadline = loop_.After(std::chrono::seconds(60), [this] {
      ADD_FAILURE() << "the deadline";
      loop_.Stop();
    });
    FabricWatch::Options options;
    options.settings = tree_ / "roce.yaml";
    options.host = {tree_.path(),
                    [](const std::vector<std::string>&) -> Result<Ran> {
                      return Error{Errc::kUnavailable, ""};
                    },
                    [this] {
                      ++asked_;
                      return std::vector<roce::HostAddress>{{"fab0", "10.77.0.1", 24}};
                    }};
    options.every = std::chrono::milliseconds(10);
    watch_ = std::make_unique<FabricWatch>(
        loop_, options,
        [this] {
          if (++ticks_ == stop_at_) loop_.Stop();
          return wanted_;
        },
        [this](const std::vector<std::string>& news, const std::string& sick) {
          ++samples_;
          news_.insert(news_.end(), news.begin(), news.end());
          sick_ = sick;
          if (holds_()) loop_.Stop();
        });
    loop_.Run();
    loop_.Cancel(deadline);
  }

  TemporaryTree tree_;
  Loop loop_;
  std::function<bool()> holds_;
  std::vector<std::string> news_;
  std::string sick_;
  int samples_ = 0;
  int ticks_ = 0;
  int stop_at_ = -1;
  std::atomic<int> asked_ = 0;
  bool wanted_ = true;
  std::unique_ptr<FabricWatch> watch_;
};

TEST_F(FabricWatchTest, ALinkThatIsLostIsNewsAndPartOfWhatWasBeforeAnEnd) {
  RunUntil([this] {
    if (samples_ == 2) tree_.Write("sys/class/net/fab0/operstate", "down\n");
    return !news_.empty();
  });
  EXPECT_EQ(news_[0], "fab0 lost its link: operstate down");
  EXPECT_EQ(sick_, "");
  const auto facts = watch_->Before(Realtime() + 3 * PortWatch::kSecond);
  ASSERT_EQ(facts.size(), 2U);
  EXPECT_EQ(facts[0].text, "fab0 has no link: operstate down");
  EXPECT_THAT(facts[1].text,
              ::testing::ContainsRegex("fab0 lost its link: operstate down, ([3-9]|[1-9][0-9]+)\\."));
  EXPECT_TRUE(facts[1].hardware);
  EXPECT_THAT(watch_->Before(Realtime() + 3'600 * PortWatch::kSecond),
              ::testing::SizeIs(1));  // it still holds
  EXPECT_EQ(watch_->figures()->down, 1U);
  EXPECT_EQ(watch_->figures()->links_lost, 1U);
}

TEST_F(FabricWatchTest, WithoutNetworksNothingIsRead) {
  tree_.Write("roce.yaml", "networks: ''\n");
  stop_at_ = 20;
  RunUntil([] { return false; });
  EXPECT_EQ(samples_, 0);
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(watch_->figures(), std::nullopt);
  EXPECT_THAT(watch_->Before(Realtime()), IsEmpty());
}

TEST_F(FabricWatchTest, WithoutSettingsOrWithBadOnesNothingIsRead) {
  tree_.Write("roce.yaml", "networks: nonsense\nmtu: x\n");
  stop_at_ = 20;
  RunUntil([] { return false; });
  EXPECT_EQ(samples_, 0);
  EXPECT_EQ(asked_, 0);
}

TEST_F(FabricWatchTest, OnlyTheDefaultFileOfSettingsMayBeMissing) {
  EXPECT_EQ(Config().fabric_settings, roce::kSettingsPath);
  const auto none = roce::LoadSettings("");
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->networks, IsEmpty());
  EXPECT_EQ(roce::LoadSettings(tree_ / "other.yaml").error().code, Errc::kNotFound);
}

TEST_F(FabricWatchTest, WithoutGangsNothingIsRead) {
  wanted_ = false;
  stop_at_ = 20;
  RunUntil([] { return false; });
  EXPECT_EQ(samples_, 0);
  EXPECT_EQ(asked_, 0);
}

TEST_F(FabricWatchTest, PortsAreLookedForWhenTheFirstGangComes) {
  RunUntil([this] {
    if (samples_ == 2) wanted_ = false;
    return true;
  });
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(watch_->figures()->up, 1U);
}

}  // namespace
}  // namespace muster::watch
