#include "daemon/agent/shard_reports.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster {
namespace {

v1::ShardWritten Report(uint64_t generation, uint32_t rank, uint64_t step, const std::string& error = "") {
  v1::ShardWritten report;
  report.set_generation(generation);
  report.mutable_shard()->set_rank(rank);
  report.set_step(step);
  report.set_error(error);
  return report;
}

// "RANK:STEP" of each.
std::vector<std::string> All(const ShardReports& reports) {
  std::vector<std::string> all;
  for (const auto& [key, report] : reports.all())
    all.push_back(std::to_string(report.shard().rank()) + ":" + std::to_string(report.step()));
  return all;
}

TEST(ShardReports, AreKeptUntilTheirSaveIsDecidedForAllRanks) {
  ShardReports reports;
  for (const uint32_t rank : {0U, 1U}) {
    for (const uint64_t step : {10U, 20U}) reports.Add(Report(1, rank, step));
  }
  reports.Decided(1, 10);
  EXPECT_EQ(All(reports), (std::vector<std::string>{"0:20", "1:20"}));
  reports.Decided(1, 30);
  EXPECT_EQ(All(reports), (std::vector<std::string>{"0:20", "1:20"}));
  reports.Clear();
  EXPECT_TRUE(reports.all().empty());
}

// What a coordinator has decided may still be on its way when the next generation has saved the same step.
TEST(ShardReports, ADecisionOfAnotherGenerationIsAboutAnotherSave) {
  ShardReports reports;
  reports.Add(Report(2, 0, 10));
  reports.Decided(1, 10);
  EXPECT_EQ(All(reports), (std::vector<std::string>{"0:10"}));
  reports.Decided(2, 10);
  EXPECT_TRUE(reports.all().empty());
}

TEST(ShardReports, TheLastOneOfAShardCounts) {
  ShardReports reports;
  reports.Add(Report(1, 0, 10, "the store is away"));
  reports.Add(Report(1, 0, 10));
  ASSERT_EQ(reports.all().size(), 1U);
  EXPECT_EQ(reports.all().begin()->second.error(), "");
}

TEST(ShardReports, AMemberMayAskAboutSoManyAndNoOneElsesCount) {
  ShardReports reports;
  reports.Add(Report(1, 0, 7));
  EXPECT_FALSE(reports.MayAdd(0, 7));
  EXPECT_TRUE(reports.MayAdd(1, 7));
  for (uint64_t step = 100; reports.MayAdd(0, step); ++step) reports.Add(Report(1, 0, step));
  EXPECT_EQ(reports.all().size(), static_cast<size_t>(ShardReports::kMostOfRank));
  EXPECT_TRUE(reports.MayAdd(1, 7));
  reports.Decided(1, 7);
  EXPECT_TRUE(reports.MayAdd(0, 8));
}

}  // namespace
}  // namespace muster
