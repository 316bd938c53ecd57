#include "daemon/hang/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace muster::hang {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kSecondDouble = kSecondNs;

class StragglersTest : public testing::Test {
 protected:
  explicit StragglersTest(uint32_t size = 8) {
    for (uint32_t rank = 0; rank < size; ++rank) members_.push_back({rank, "worker", "", true});
    stragglers_.GenerationStarted(members_);
  }

  void Say(uint32_t rank, uint64_t step, double at, double now) {
    MemberReport report;
    report.rank = rank;
    report.step = step;
    report.age_ns = static_cast<int64_t>((now - at) * kSecondDouble);
    stragglers_.Report(report, static_cast<int64_t>(now * kSecondDouble));
  }
  std::vector<uint32_t> Marked() const {
    std::vector<uint32_t> marked;
    for (const Pace& pace : stragglers_.Paces()) {
      if (pace.straggler) marked.push_back(pace.rank);
    }
    return marked;
  }
  // A step of a second, after which all wait for each other; rank 3 takes `seconds` for it.
  void Together(uint64_t step, double seconds) {
    const double began = now_;
    now_ += std::max(seconds, 1.0);
    for (uint32_t rank = 0; rank < 8; ++rank) Say(rank, step, began + (rank == 3 ? seconds : 1.0), now_);
  }
  double Jitter(double share) { return 1 + std::normal_distribution<>(0, share)(random_); }

  double now_ = 0;
  std::mt19937 random_{7};
  std::vector<Member> members_;
  Stragglers stragglers_;
};

TEST_F(StragglersTest, ARankWithSlowerStepsOfItsOwnIsMarked) {
  std::vector<double> at(8, 0.0);
  std::vector<uint64_t> step(8, 0);
  for (double now = 1; now < 120; now += 1) {
    for (uint32_t rank = 0; rank < 8; ++rank) {
      const double pace = rank == 6 ? 0.26 : 0.2;
      while (at[rank] + pace < now) {
        at[rank] += pace * Jitter(0.05);
        ++step[rank];
      }
      Say(rank, step[rank], at[rank], now);
    }
    stragglers_.Tick();
  }
  EXPECT_THAT(Marked(), ElementsAre(6));
  const Pace pace = stragglers_.Paces()[6];
  EXPECT_NEAR(static_cast<double>(pace.step_ns), 0.26e9, 0.03e9);
  EXPECT_THAT(pace.why, HasSubstr("a step takes"));
}

TEST_F(StragglersTest, ARankThatComesLateToEveryStepIsMarkedThoughAllStepsTakeTheSame) {
  double now = 0;
  for (uint64_t step = 1; step < 40; ++step) {
    now += 5;
    for (uint32_t rank = 0; rank < 8; ++rank)
      Say(rank, step, now - (rank == 2 ? 1.0 : 2.5) * Jitter(0.02), now);
    stragglers_.Tick();
  }
  EXPECT_THAT(Marked(), ElementsAre(2));
  EXPECT_THAT(stragglers_.Paces()[2].why, HasSubstr("after the others"));
  EXPECT_NEAR(static_cast<double>(stragglers_.Paces()[2].late_ns), 1.5e9, 0.2e9);
}

// Each node reports once in 1.8 s, which is what a step takes: half of them always before the late rank has entered it.
TEST_F(StragglersTest, ALateRankIsFoundThoughTheReportsNeverShowAllAtTheSameStep) {
  for (uint64_t step = 1; step < 40; ++step) {
    const double began = 1.8 * static_cast<double>(step);
    for (const uint32_t rank : {0U, 1U, 2U, 3U}) Say(rank, step, began + 0.6, began + 1.0);
    stragglers_.Tick();  // those are at this step, the others at the one before
    for (const uint32_t rank : {4U, 5U, 6U}) Say(rank, step, began + 0.6, began + 1.9);
    Say(7, step, began + 1.8, began + 1.9);
    for (const uint32_t rank : {0U, 1U, 2U, 3U}) Say(rank, step + 1, began + 2.4, began + 2.5);
    stragglers_.Tick();
  }
  EXPECT_THAT(Marked(), ElementsAre(7));
  EXPECT_NEAR(static_cast<double>(stragglers_.Paces()[7].late_ns), 1.2e9, 0.1e9);
}

TEST_F(StragglersTest, JitterMarksNobody) {
  for (uint64_t step = 1; step < 500; ++step) {
    const double now = static_cast<double>(step) * 2;
    for (uint32_t rank = 0; rank < 8; ++rank) Say(rank, step, now - 0.5 * std::abs(Jitter(0.5)), now);
    stragglers_.Tick();
    ASSERT_THAT(Marked(), IsEmpty()) << "at step " << step;
  }
}

TEST_F(StragglersTest, OneSlowStepMarksNobody) {
  for (uint64_t step = 1; step < 100; ++step) {
    Together(step, step == 50 ? 10.0 : 1.0);
    stragglers_.Tick();
    ASSERT_THAT(Marked(), IsEmpty()) << "at step " << step;
  }
}

TEST_F(StragglersTest, TheMarkGoesWhenTheRankHasCaughtUp) {
  bool changed_to_good = false;
  for (uint64_t step = 1; step < 200; ++step) {
    Together(step, step < 100 ? 2.0 : 1.0);
    const bool changed = stragglers_.Tick();
    if (step == 99) {
      EXPECT_THAT(Marked(), ElementsAre(3));
    }
    if (step > 100 && changed && Marked().empty()) changed_to_good = true;
  }
  EXPECT_TRUE(changed_to_good);
}

TEST_F(StragglersTest, RolesAreJudgedApart) {
  for (uint32_t rank = 4; rank < 8; ++rank) members_[rank].role = "evaluator";
  stragglers_.GenerationStarted(members_);
  for (uint64_t step = 1; step < 100; ++step) {
    for (uint32_t rank = 0; rank < 8; ++rank) {
      const double at = static_cast<double>(step) * (rank < 4 ? 1 : 30);
      Say(rank, step, at, at);
    }
    stragglers_.Tick();
  }
  EXPECT_THAT(Marked(), IsEmpty());
}

}  // namespace
}  // namespace muster::hang
