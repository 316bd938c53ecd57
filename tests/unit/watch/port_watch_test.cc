#include "daemon/watch/port_watch.h"

#include <gmock/gmock.h>

namespace muster::watch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kStep = 2 * PortWatch::kSecond;

class PortWatchTest : public ::testing::Test {
 protected:
  // The texts of what is found two seconds on.
  std::vector<std::string> Next(const PortSample& sample) {
    now_ += kStep;
    findings_ = port_.Take(sample, now_);
    std::vector<std::string> texts;
    for (const Finding& finding : findings_) texts.push_back(finding.text);
    return texts;
  }
  static PortSample Up(uint64_t carrier_changes = 1) {
    PortSample sample;
    sample.up = true;
    sample.state = "operstate up";
    sample.carrier_changes = carrier_changes;
    return sample;
  }
  static PortSample Down(uint64_t carrier_changes = 2) {
    PortSample sample = Up(carrier_changes);
    sample.up = false;
    sample.state = "operstate down";
    return sample;
  }
  static PortSample Counting(Count count, uint64_t value) {
    PortSample sample = Up();
    sample.counters = {{count, "a_counter", value}};
    return sample;
  }
  static PortSample WithGid(const std::string& gid) {
    PortSample sample = Up();
    sample.gid = gid;
    sample.gid_index = 3;
    return sample;
  }
  // Grows by so many a second for so many seconds: all that is found.
  std::vector<std::string> Grow(Count count, uint64_t per_second, int64_t seconds) {
    std::vector<std::string> all;
    for (int64_t i = 0; i < seconds; i += 2) {
      value_ += 2 * per_second;
      for (std::string& text : Next(Counting(count, value_))) all.push_back(std::move(text));
    }
    return all;
  }

  PortWatch port_{"mlx5_0 port 1 (roce0)"};
  int64_t now_ = 1'000 * PortWatch::kSecond;
  uint64_t value_ = 500;
  std::vector<Finding> findings_;
};

TEST_F(PortWatchTest, ALinkThatIsLostIsNamedAtOnceAndMakesTheNodeSickAfterAWhile) {
  EXPECT_THAT(Next(Up()), IsEmpty());
  EXPECT_THAT(Next(Down()), ElementsAre("mlx5_0 port 1 (roce0) lost its link: operstate down"));
  EXPECT_TRUE(findings_[0].hardware);
  EXPECT_TRUE(findings_[0].tell);
  EXPECT_EQ(port_.Sick(now_), "");
  EXPECT_THAT(port_.Holding(), ::testing::SizeIs(1));
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Next(Down()), IsEmpty());
  EXPECT_EQ(port_.Sick(now_), "mlx5_0 port 1 (roce0) has had no link for 10 s: operstate down");
  EXPECT_THAT(Next(Up(3)), ElementsAre("mlx5_0 port 1 (roce0) has its link again after 12.0 s"));
  EXPECT_FALSE(findings_[0].hardware);
  EXPECT_EQ(port_.Sick(now_), "");
  EXPECT_EQ(port_.links_lost(), 1U);
}

TEST_F(PortWatchTest, APortThatWasNeverUpSaysNothing) {
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Next(Down()), IsEmpty());
  EXPECT_EQ(port_.Sick(now_), "");
  EXPECT_FALSE(port_.up());
  EXPECT_EQ(port_.links_lost(), 0U);
}

TEST_F(PortWatchTest, AStateThatIsNotToldIsNoLoss) {
  PortSample unknown = Up();
  unknown.up.reset();
  Next(Up());
  EXPECT_THAT(Next(unknown), IsEmpty());
  EXPECT_TRUE(port_.up());
}

TEST_F(PortWatchTest, AFlapBetweenTwoSamplesIsSeenAndManyAreOneEvent) {
  Next(Up(1));
  EXPECT_THAT(Next(Up(3)), ElementsAre("mlx5_0 port 1 (roce0) lost its link for a moment"));
  EXPECT_TRUE(findings_[0].tell);
  Next(Up(9));
  ASSERT_EQ(findings_.size(), 1U);
  EXPECT_EQ(findings_[0].text, "mlx5_0 port 1 (roce0) lost its link for a moment, 3 times");
  EXPECT_FALSE(findings_[0].tell);
  EXPECT_EQ(port_.links_lost(), 4U);
  for (int i = 0; i < 30; ++i) Next(Up(9));
  Next(Up(11));
  EXPECT_TRUE(findings_.at(0).tell);
}

TEST_F(PortWatchTest, APortThatVanishesIsNamedAndItsCountersBeginAnew) {
  PortSample gone;
  gone.there = false;
  EXPECT_THAT(Next(gone), IsEmpty());  // it was never there
  Next(Counting(Count::kRetransmit, 1'000'000));
  EXPECT_THAT(Next(gone), ElementsAre(HasSubstr("is gone")));
  for (int i = 0; i < 14; ++i) EXPECT_THAT(Next(gone), IsEmpty());
  EXPECT_EQ(port_.Sick(now_), "");
  Next(gone);
  EXPECT_EQ(port_.Sick(now_), "mlx5_0 port 1 (roce0) has been gone for 30 s");
  EXPECT_THAT(Next(Counting(Count::kRetransmit, 5)), ElementsAre(HasSubstr("is there again after 32.0 s")));
  EXPECT_EQ(port_.Sick(now_), "");
  Next(Counting(Count::kRetransmit, 8));
  EXPECT_EQ(port_.totals()[static_cast<size_t>(Count::kRetransmit)], 3U);
}

TEST_F(PortWatchTest, ARateThatStaysIsOneFindingUntilItIsOver) {
  Next(Counting(Count::kRetransmit, value_));
  const auto found = Grow(Count::kRetransmit, 50, 120);
  ASSERT_THAT(found, ElementsAre("mlx5_0 port 1 (roce0) sends packets again: 50 a second (retransmit)"));
  EXPECT_THAT(port_.Holding(), ::testing::SizeIs(1));
  EXPECT_FALSE(port_.Holding()[0].hardware);
  // Between half of the threshold and the threshold it goes on.
  EXPECT_THAT(Grow(Count::kRetransmit, 7, 120), IsEmpty());
  EXPECT_THAT(Grow(Count::kRetransmit, 50, 60), IsEmpty());
  Grow(Count::kRetransmit, 0, 60);
  EXPECT_THAT(port_.Holding(), IsEmpty());
  EXPECT_THAT(Grow(Count::kRetransmit, 50, 60), ::testing::SizeIs(1));
  EXPECT_EQ(port_.Sick(now_), "");
}

TEST_F(PortWatchTest, ABurstIsNoFindingHoweverLarge) {
  Next(Counting(Count::kCnpReceived, value_));
  EXPECT_THAT(Grow(Count::kCnpReceived, 400'000, 6), IsEmpty());
  EXPECT_THAT(Grow(Count::kCnpReceived, 0, 60), IsEmpty());
  EXPECT_THAT(Grow(Count::kCnpReceived, 9'000, 300), IsEmpty());
  EXPECT_THAT(Grow(Count::kCnpReceived, 12'000, 60), ElementsAre(HasSubstr("is told of congestion: 1")));
}

TEST_F(PortWatchTest, EveryKindHasAThresholdThatIsReached) {
  for (size_t i = 0; i < kCounts; ++i) {
    port_ = PortWatch("p");
    Next(Counting(static_cast<Count>(i), value_));
    EXPECT_THAT(Grow(static_cast<Count>(i), 20'000, 60), ::testing::SizeIs(1));
  }
}

TEST_F(PortWatchTest, ACounterThatWrapsGoesOnAndOneThatIsResetAddsNothing) {
  constexpr int64_t kTwo = 2 * PortWatch::kSecond;
  EXPECT_EQ(Growth(10, 25, kTwo), 15U);
  EXPECT_EQ(Growth((1ULL << 32) - 5, 7, kTwo), 12U);
  EXPECT_EQ(Growth(1'000'000, 7, kTwo), 0U);
  EXPECT_EQ(Growth(~0ULL, 7, kTwo), 0U);
  EXPECT_EQ(Growth(0, ~0ULL, kTwo), 0U);
  EXPECT_EQ(Growth(0, ~0ULL, -5), 0U);
}

TEST_F(PortWatchTest, ACounterThatComesLateOrIsAwayForASampleAddsNothingWrong) {
  Next(Up());
  Next(Counting(Count::kLinkErrors, 1'000'000));
  Next(Up());
  Next(Counting(Count::kLinkErrors, 1'000'004));
  EXPECT_EQ(port_.totals()[static_cast<size_t>(Count::kLinkErrors)], 4U);
}

TEST_F(PortWatchTest, APauseOfTheWatchStartsRatesAnewAndKeepsTheState) {
  Next(Counting(Count::kRetransmit, 100));
  port_.Pause();
  now_ += 3'600 * PortWatch::kSecond;
  Next(Counting(Count::kRetransmit, 9'000'000));
  EXPECT_EQ(port_.totals()[static_cast<size_t>(Count::kRetransmit)], 0U);
  port_.Pause();
  EXPECT_THAT(Next(Up(9)), IsEmpty());
  EXPECT_THAT(Next(Down()), ElementsAre(HasSubstr("lost its link")));
}

TEST_F(PortWatchTest, AnotherGidAtTheIndexInUseIsNamedOnce) {
  Next(WithGid("0000:0000:0000:0000:0000:ffff:0a4d:0001"));
  EXPECT_THAT(Next(WithGid("0000:0000:0000:0000:0000:0000:0000:0000")), IsEmpty());
  EXPECT_THAT(Next(WithGid("")), IsEmpty());
  EXPECT_THAT(Next(WithGid("0000:0000:0000:0000:0000:ffff:0a4d:0002")),
              ElementsAre("mlx5_0 port 1 (roce0) has another GID at index 3: "
                          "0000:0000:0000:0000:0000:ffff:0a4d:0002, which was "
                          "0000:0000:0000:0000:0000:ffff:0a4d:0001"));
  EXPECT_THAT(Next(WithGid("0000:0000:0000:0000:0000:ffff:0a4d:0002")), IsEmpty());
}

TEST_F(PortWatchTest, AGidThatIsAtAnotherIndexNowIsNamedOnce) {
  Next(WithGid("0000:0000:0000:0000:0000:ffff:0a4d:0001"));
  PortSample moved = WithGid("0000:0000:0000:0000:0000:0000:0000:0000");
  moved.gid_moved_to = 5;
  EXPECT_THAT(Next(moved), ElementsAre(HasSubstr("at index 5 now, not at 3")));
  EXPECT_THAT(Next(moved), IsEmpty());
}

}  // namespace
}  // namespace muster::watch
