// A hang is told with the stacks of all nodes, or with those that have come in time; a gang that goes on is not told.
#include "daemon/coordinator/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/loop_thread.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kLimitS = 10;

class HangWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    loop_.Do([&] {
      HangWatch::Hooks hooks;
      hooks.capture = [this](uint64_t generation) {
        captured_.push_back(generation);
        return std::set<uint32_t>{0, 1};
      };
      hooks.note = [this](const std::string& kind, const std::string& /*text*/) { notes_.push_back(kind); };
      hooks.hung = [this](gang::Hung hung, uint32_t rank) { told_.emplace_back(std::move(hung), rank); };
      HangWatch::Settings settings{.hang = {}, .stacks_within = seconds(5)};
      settings.hang.limit_ns = kLimitS * hang::kSecondNs;
      watch_.emplace(loop_.loop(), settings, std::move(hooks));
      watch_->Begin(7, {{0, "worker", "n1", true}, {1, "worker", "n2", true}});
    });
  }
  void TearDown() override {
    loop_.Do([&] { watch_.reset(); });
  }
  // Both ranks' nodes report, each second; those that `stand` have made their last step.
  void Run(int seconds_of_time, const std::set<uint32_t>& stand = {}) {
    for (int i = 0; i < seconds_of_time; ++i) {
      loop_.Move(seconds(1));
      v1::MemberReports reports;
      for (const uint32_t rank : {0U, 1U}) {
        if (!stand.contains(rank)) {
          ++step_[rank];
          age_ms_[rank] = 0;
        } else {
          age_ms_[rank] += 1000;
        }
        v1::MemberReport* report = reports.add_members();
        report->set_rank(rank);
        report->set_has_step(true);
        report->set_step(step_[rank]);
        report->set_calls(step_[rank]);
        report->set_age_ns(age_ms_[rank] * 1'000'000);
      }
      loop_.Do([&] { watch_->Take(reports, false); });
    }
  }
  void Stacks(uint32_t node, uint64_t generation = 7) {
    v1::Stacks stacks;
    stacks.set_generation(generation);
    v1::Stacks::Member* member = stacks.add_members();
    member->set_rank(node);
    member->set_summary("summary " + std::to_string(node));
    member->set_text("text " + std::to_string(node));
    loop_.Do([&] { watch_->Take(stacks, node); });
  }
  std::vector<uint64_t> Captured() {
    return loop_.Do([&] { return captured_; });
  }
  size_t Told() {
    return loop_.Do([&] { return told_.size(); });
  }

  uint64_t step_[2] = {0, 0};
  int64_t age_ms_[2] = {0, 0};
  std::vector<uint64_t> captured_;
  std::vector<std::string> notes_;
  std::vector<std::pair<gang::Hung, uint32_t>> told_;
  LoopThread loop_;
  std::optional<HangWatch> watch_;
};

TEST_F(HangWatchTest, AGangThatStepsIsLeftAlone) {
  Run(60);
  EXPECT_THAT(Captured(), IsEmpty());
  EXPECT_EQ(Told(), 0U);
}

TEST_F(HangWatchTest, IsToldOnceAllStacksAreThereWithWhoStandsFirst) {
  Run(15);
  Run(kLimitS + 5, {0, 1});
  ASSERT_THAT(Captured(), ElementsAre(7));
  Stacks(0);
  EXPECT_EQ(Told(), 0U);
  Stacks(1);
  ASSERT_EQ(Told(), 1U);
  const auto& [hung, rank] = told_[0];
  EXPECT_EQ(hung.generation, 7U);
  EXPECT_THAT(hung.report, HasSubstr("text " + std::to_string(rank)));
  EXPECT_THAT(hung.report, HasSubstr("summary " + std::to_string(1 - rank)));
  EXPECT_THAT(notes_, ElementsAre("hang", "stack", "stack"));
}

TEST_F(HangWatchTest, TheRankThatStandsAloneIsNamed) {
  Run(15);
  Run(60, {1});  // one alone is waited for four times as long
  Stacks(0);
  Stacks(1);
  ASSERT_EQ(Told(), 1U);
  EXPECT_EQ(told_[0].second, 1U);
  EXPECT_THAT(told_[0].first.signature, HasSubstr("of ranks 1"));
}

TEST_F(HangWatchTest, WhereNobodyDiffersOtherwiseTheRankWhoseStackDiffersFromMostIsNamed) {
  for (const uint32_t odd : {2U, 9U}) {  // 9: none
    loop_.Do([&] {
      watch_->Begin(8 + odd, {{0, "worker", "n1", true},
                              {1, "worker", "n1", true},
                              {2, "worker", "n2", true},
                              {3, "worker", "n2", true},
                              {4, "log", "n2", false}});
    });
    v1::MemberReports reports;
    v1::Stacks stacks[2];
    for (uint32_t rank = 0; rank < 5; ++rank) {
      v1::MemberReport* report = reports.add_members();
      report->set_rank(rank);
      report->set_has_step(true);
      report->set_step(1);
      report->set_calls(1);
      v1::Stacks& of_node = stacks[rank / 2 == 0 ? 0 : 1];
      of_node.set_generation(8 + odd);
      v1::Stacks::Member* member = of_node.add_members();
      member->set_rank(rank);
      member->set_text("text " + std::to_string(rank));
      member->set_summary(rank == 4 ? "writes a log" : rank == odd ? "reads a file" : "waits");
    }
    for (int i = 0; i <= kLimitS + 1; ++i) {
      loop_.Do([&] { watch_->Take(reports, false); });
      loop_.Move(seconds(1));
      for (v1::MemberReport& report : *reports.mutable_members())
        report.set_age_ns(report.age_ns() + 1'000'000'000);
    }
    told_.clear();
    loop_.Do([&] {
      watch_->Take(stacks[0], 0);
      watch_->Take(stacks[1], 1);
    });
    ASSERT_EQ(Told(), 1U);
    const auto& [hung, rank] = told_[0];
    if (odd == 2) {
      EXPECT_THAT(hung.what, HasSubstr("; by the stacks rank 2 on n2 stands elsewhere than most"));
      EXPECT_THAT(hung.report, HasSubstr("rank 2:\ntext 2"));
      EXPECT_EQ(rank, 2U);
    } else {
      EXPECT_THAT(hung.what, Not(HasSubstr("stacks")));
    }
  }
}

TEST_F(HangWatchTest, IsToldWithoutTheStacksThatDoNotComeInTime) {
  Run(15);
  Run(kLimitS + 1, {0, 1});
  ASSERT_THAT(Captured(), SizeIs(1));
  Stacks(0);
  Stacks(1, 6);  // of an older generation
  EXPECT_EQ(Told(), 0U);
  loop_.Move(seconds(5));
  ASSERT_EQ(Told(), 1U);
  EXPECT_THAT(told_[0].first.report, HasSubstr("0"));
}

TEST_F(HangWatchTest, AGenerationThatEndsMeanwhileIsNotTold) {
  Run(15);
  Run(kLimitS + 1, {0, 1});
  ASSERT_THAT(Captured(), SizeIs(1));
  loop_.Do([&] { watch_->End(); });
  Stacks(0);
  Stacks(1);
  loop_.Move(seconds(60));
  EXPECT_EQ(Told(), 0U);
}

}  // namespace
}  // namespace muster
