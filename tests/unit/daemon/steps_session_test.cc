// muster_step from end to end: two programs with libmuster, the daemons of their nodes, and one of these coordinates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/daemon/two_programs.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using wire::Type;

constexpr auto kSoon = std::chrono::seconds(60);

bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class StepSession : public TwoPrograms {
 protected:
  struct Asked {
    uint64_t step;
    bool save;
    bool exit;
    std::string reason;
    bool operator==(const Asked&) const = default;
  };

  void TearDown() override {
    StopSteps();
    TwoPrograms::TearDown();
  }
  // Both enter step after step, a step when both have entered the one before.
  void BeginSteps() {
    for (uint32_t node = 0; node < 2; ++node) {
      threads_.emplace_back([this, node] {
        for (uint64_t step = 1;; ++step) {
          muster_wish wish;
          EXPECT_EQ(muster_step(handles_[node].get(), step, &wish), MUSTER_OK) << wish.reason;
          if (wish.save != 0 || wish.exit != 0) {
            asked_[node].push_back({step, wish.save != 0, wish.exit != 0, wish.reason});
            ++wishes_;
          }
          if (node == 0) {
            entered_ = step;
            last_ = stop_.load();
          }
          together_.arrive_and_wait();
          if (last_) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          together_.arrive_and_wait();
        }
      });
    }
  }
  void StopSteps() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void GoesOn() {
    const uint64_t before = entered_;
    EXPECT_TRUE(Eventually([&] { return entered_ > before + 20; })) << "at step " << before;
  }
  // Both were asked the same of one step.
  void ExpectAskedAlike() {
    EXPECT_TRUE(Eventually([this] { return wishes_ >= 2; }));
    GoesOn();
    StopSteps();
    ASSERT_THAT(asked_[0], SizeIs(1));
    EXPECT_EQ(asked_[0], asked_[1]);
    EXPECT_TRUE(asked_[0][0].save && asked_[0][0].exit);
    EXPECT_EQ(asked_[0][0].reason, "Slurm sent SIGTERM");
  }

  std::vector<std::thread> threads_;
  std::barrier<> together_{2};
  std::atomic<bool> stop_ = false;
  std::atomic<bool> last_ = false;
  std::atomic<uint64_t> entered_ = 0;
  std::atomic<int> wishes_ = 0;
  std::vector<Asked> asked_[2];
};

TEST_F(StepSession, BothAreAskedAtTheSameStep) {
  BeginSteps();
  GoesOn();
  EXPECT_EQ(wishes_, 0);
  supervisors_[0].Signalled(SIGTERM);
  ExpectAskedAlike();
}

TEST_F(StepSession, AWishComesBeforeTheFirstStep) {
  supervisors_[1].Signalled(SIGTERM);
  muster_wish wish;
  for (const Handle& handle : handles_) {
    EXPECT_TRUE(Eventually([&] {
      EXPECT_EQ(muster_step(handle.get(), MUSTER_LATEST, &wish), MUSTER_OK);
      return wish.save == 1 && wish.exit == 1;
    })) << "of no step in particular it is said at once";
  }
  BeginSteps();
  ExpectAskedAlike();
}

TEST_F(StepSession, StepsGoOnAndAreAgreedOnWhenBothMusterdsWereRestarted) {
  BeginSteps();
  GoesOn();
  for (const uint32_t node : {0, 1}) {  // the second coordinates
    Restart(node);
    GoesOn();
  }
  supervisors_[0].Signalled(SIGTERM);
  ExpectAskedAlike();
}

TEST_F(StepSession, WhatIsWantedOutlivesTheCoordinator) {
  supervisors_[0].Signalled(SIGTERM);
  muster_wish wish;
  for (const Handle& handle : handles_) {
    EXPECT_TRUE(Eventually([&] {
      EXPECT_EQ(muster_step(handle.get(), MUSTER_LATEST, &wish), MUSTER_OK);
      return wish.exit == 1;
    }));
  }
  Restart(1);
  BeginSteps();
  ExpectAskedAlike();
}

TEST_F(StepSession, ASignalThatComesWhileThereIsNoCoordinatorIsToldToTheNext) {
  BeginSteps();
  GoesOn();
  daemons_[1].reset();
  supervisors_[0].Signalled(SIGTERM);
  Restart(1);
  ExpectAskedAlike();
}

TEST_F(StepSession, AProgramThatIsOverIsToldSo) {
  supervisors_[1].Exited(generation_, 9);
  for (TestSupervisor& supervisor : supervisors_) {
    ASSERT_TRUE(supervisor.Next(Type::kStop));
    supervisor.Stopped(generation_);
  }
  ASSERT_TRUE(supervisors_[0].Next(Type::kStart));
  muster_wish wish;
  uint64_t step = 0;
  EXPECT_TRUE(Eventually([&] { return muster_step(handles_[0].get(), ++step, &wish) == MUSTER_E_DENIED; }));
  EXPECT_THAT(wish.reason, HasSubstr("generation"));
}

}  // namespace
}  // namespace muster
