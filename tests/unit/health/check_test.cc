#include "daemon/health/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "tests/unit/health/recorder.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class NodeCheck : public ::testing::Test {
 protected:
  NodeCheck() {
    options_.helper = MUSTER_HEALTH;
    options_.timeout = std::chrono::seconds(60);
    options_.nvml_library = MUSTER_FAKE_NVML_LIBRARY;
    ::setenv("MUSTER_FAKE_NVML", (tree_ / "nvml").c_str(), 1);
  }
  ~NodeCheck() override {
    WaitForHelper();
    ::unsetenv("MUSTER_FAKE_NVML");
  }

  // One that was killed may take a moment to die; the next check would say that it still hangs.
  static void WaitForHelper() {
    siginfo_t info{};
    while (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
  }

  // Without this machine's clock.
  HealthReport Check() {
    HealthReport report = CheckNode(options_);
    std::erase_if(report.findings, [](const HealthFinding& one) { return one.subject == "clock"; });
    return report;
  }
  void Script(const std::string& text) {
    tree_.Write("helper", "#!/bin/sh\n" + text);
    ASSERT_EQ(::chmod((tree_ / "helper").c_str(), 0755), 0);
    options_.helper = tree_ / "helper";
  }
  TemporaryTree tree_;
  HealthOptions options_ = QuietOptions(tree_);
};

TEST_F(NodeCheck, OfAHealthyNodeFindsNothing) {
  options_.disks = {tree_.path()};
  options_.disk_free_percent = 0;
  const HealthReport report = Check();
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_FALSE(report.sick());
  EXPECT_EQ(report.Reason(), "");
}

TEST_F(NodeCheck, FindsWhatIsWrongAndSaysSoInOneLine) {
  tree_.Write("nvml", "count 2\n1 ecc 4\n0 clocks 64\n");
  tree_.Write("sys/class/infiniband/rdma0/ports/1/state", "1: DOWN\n");
  tree_.Write("sys/class/infiniband/rdma0/ports/1/counters/symbol_error", "17\n");
  options_.nics = {"rdma0"};
  const HealthReport report = Check();
  ASSERT_THAT(report.findings, SizeIs(3));
  EXPECT_TRUE(report.sick());
  EXPECT_EQ(report.findings[1].subject, "gpu 0");
  EXPECT_EQ(report.findings[1].severity, HealthSeverity::kWarning);
  EXPECT_EQ(report.Reason(),
            "nic rdma0 is not up: state DOWN, physical state ; gpu 1 had 4 uncorrectable memory errors since "
            "its last "
            "reset");
  EXPECT_EQ(report.counters.at("rdma0/1 symbol_error"), 17U);
}

TEST_F(NodeCheck, ComparesWithTheCountersOfTheLastOne) {
  tree_.Write("sys/class/infiniband/rdma0/ports/1/counters/symbol_error", "17\n");
  options_.last_counters = Check().counters;
  tree_.Write("sys/class/infiniband/rdma0/ports/1/counters/symbol_error", "19\n");
  const HealthReport report = Check();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].what, "counted 2 more symbol_error since the last check");
  EXPECT_FALSE(report.sick());
}

TEST_F(NodeCheck, ADriverThatHangsIsSickInTimeAndNamed) {
  tree_.Write("nvml", "count 4\n0 ecc 1\n2 pages hang\n");
  options_.timeout = std::chrono::seconds(5);  // to come to that GPU
  options_.last_counters = {{"rdma0/1 up", 1}};
  const auto begin = std::chrono::steady_clock::now();
  const HealthReport report = Check();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  ASSERT_THAT(report.findings, SizeIs(2)) << "what was found before is kept";
  EXPECT_EQ(report.findings[1].subject, "gpu 2");
  EXPECT_EQ(report.findings[1].what, "did not answer within 5000 ms");
  EXPECT_EQ(report.findings[1].severity, HealthSeverity::kSick);
  EXPECT_EQ(report.counters.at("rdma0/1 up"), 1U);
  WaitForHelper();
  tree_.Write("nvml", "");
  options_.timeout = std::chrono::seconds(60);
  EXPECT_THAT(Check().findings, IsEmpty()) << "the next check is a new one";
}

TEST_F(NodeCheck, ALibraryThatCrashesIsAWarning) {
  tree_.Write("nvml", "1 ecc 1\ncount 2\n0 rows crash\n");
  const HealthReport report = Check();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].subject, "gpu 0");
  EXPECT_EQ(report.findings[0].what, "could not be checked: muster-health ended by signal 6");
  EXPECT_FALSE(report.sick());
}

TEST_F(NodeCheck, WithoutItsProgramIsAWarning) {
  options_.helper = tree_ / "none";
  const HealthReport report = Check();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].what,
            "could not be checked: muster-health cannot be run: No such file or directory");
  EXPECT_FALSE(report.sick());
}

TEST_F(NodeCheck, ThatDoesNotEndAfterItsLastWordIsEnded) {
  Script("printf 'sick\\tdisk /x\\tis read-only\\ndone\\t\\t\\n'; exec sleep 1000");
  const HealthReport report = Check();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.Reason(), "disk /x is read-only");
}

TEST_F(NodeCheck, WhatIsNotALineIsPassedOver) {
  Script("printf 'rubbish\\nsick\\tx\\n\\001\\tdone\\t\\ncounter\\ta\\tb\\n'; exit 3");
  const HealthReport report = Check();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_THAT(report.findings[0].what, HasSubstr("ended with code 3"));
}

TEST_F(NodeCheck, WithoutTimeForItIsNone) {
  Script("exit 1");
  options_.timeout = std::chrono::milliseconds(0);
  EXPECT_THAT(Check().findings, IsEmpty());
}

TEST(HealthReport, ItsReasonIsBounded) {
  HealthReport report;
  for (int i = 0; i < 20; ++i) {
    report.findings.push_back({fmt::format("gpu {}", i), "has fallen off the bus", HealthSeverity::kSick});
  }
  EXPECT_EQ(report.Reason().size(), 200U);
  EXPECT_TRUE(report.Reason().ends_with("..."));
}

}  // namespace
}  // namespace muster
