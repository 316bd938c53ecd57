#include "daemon/cli/doctor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

namespace muster::cli {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr milliseconds kAmple{60'000};

DoctorFinding Of(const std::string& id, const std::string& about = "") {
  return {id, about, "is", "should", "fix"};
}

std::vector<std::string> Said(const std::vector<DoctorFinding>& findings) {
  std::vector<std::string> ids;
  for (const DoctorFinding& one : CausesOnly({findings.size(), findings, {}}).findings)
    ids.push_back(one.id + one.about);
  return ids;
}

TEST(DoctorCauses, WhatFollowsIsNotSaid) {
  EXPECT_THAT(Said({Of("node-down", "down"), Of("unit-down", "slurmd.service stopped")}),
              ElementsAre("unit-downslurmd.service stopped"));
  // A chain has one beginning.
  EXPECT_THAT(Said({Of("unit-down", "munge.service failed"), Of("munge-not-working"),
                    Of("unit-down", "musterd.service stopped"), Of("musterd-not-answering"),
                    Of("slurmctld-unreachable")}),
              ElementsAre("unit-downmunge.service failed"));
  EXPECT_THAT(
      Said({Of("gres"), Of("unit-down", "slurmd.service failed"), Of("node-down", "drained: gres/gpu")}),
      ElementsAre("gres"));
  EXPECT_THAT(Said({Of("disk-full"), Of("node-down", "drained: SlurmdSpoolDir is full")}),
              ElementsAre("disk-full"));
  EXPECT_THAT(Said({Of("disk-full"), Of("node-down", "drained: fans")}),
              ElementsAre("disk-full", "node-downdrained: fans"));
}

TEST(DoctorCauses, TheFixStartsWhatHasFailed) {
  DoctorFinding munge = Of("unit-down", "munge.service failed");
  DoctorFinding musterd = Of("unit-down", "musterd.service stopped");
  munge.fix = "restart munge";
  musterd.fix = "restart musterd";
  const DoctorReport report = CausesOnly({3, {musterd, Of("musterd-not-answering"), munge}, {}});
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].fix, "restart munge; restart musterd");
}

TEST(DoctorCauses, WhatHasACauseOfItsOwnIsSaid) {
  EXPECT_THAT(Said({Of("disk-full"), Of("unit-down", "musterd.service stopped")}),
              ElementsAre("disk-full", "unit-downmusterd.service stopped"));
  EXPECT_THAT(Said({Of("unit-down", "slurmd.service failed"), Of("node-down", "drained")}),
              ElementsAre("unit-downslurmd.service failed", "node-downdrained"));
  EXPECT_THAT(Said({Of("memlock"), Of("plugin-off"), Of("gres"), Of("hosts-entry"), Of("disk-full")}),
              ElementsAre("memlock", "plugin-off", "gres", "hosts-entry", "disk-full"));
}

TEST(DoctorJson, HasAllFieldsAndWarningsLeaveItOk) {
  DoctorFinding warning = Of("health");
  warning.warning = true;
  EXPECT_EQ(
      DoctorJson({3, {warning}, {"the store: why"}}, "n1").dump(),
      R"({"checked":3,"findings":[{"fix":"fix","host":"n1","id":"health","is":"is","severity":"warning",)"
      R"("should":"should"}],"ok":true,"unchecked":["the store: why"]})");
  EXPECT_EQ(DoctorJson({1, {Of("gres")}, {}}, "n1")["ok"], false);
}

TEST(DoctorText, SaysOneFindingALine) {
  EXPECT_EQ(DoctorText(DoctorJson({2, {Of("gres")}, {"why"}}, "n1")),
            "gres: is; should be: should; to mend it: fix\nnot checked: why\n2 checks, 1 finding\n");
  EXPECT_EQ(DoctorText(DoctorJson({2, {}, {}}, "n1")), "2 checks: all is well\n");
}

TEST(RunChecks, GathersWhatAllSay) {
  const DoctorReport report = RunChecks({{"a", [](DoctorNotes& notes) { notes.Check(true, Of("a")); }},
                                         {"b",
                                          [](DoctorNotes& notes) {
                                            notes.Check(false, Of("b"));
                                            notes.Unchecked("why");
                                          }}},
                                        kAmple);
  EXPECT_EQ(report.checked, 2U);
  EXPECT_THAT(Said(report.findings), ElementsAre("b"));
  EXPECT_THAT(report.unchecked, ElementsAre("why"));
}

TEST(RunChecks, WhatHangsIsFoundAndHoldsNobodyUp) {
  const auto hang = [](DoctorNotes& notes) {
    notes.Next(Of("passed"));
    notes.Check(true, Of("passed"));
    notes.Next(Of("hangs"));
    ::pause();
  };
  const auto begun = std::chrono::steady_clock::now();
  const DoctorReport report = RunChecks({{"all",
                                          [&](DoctorNotes& notes) {
                                            notes.Add(RunChecks({{"one", hang}}, milliseconds(100)));
                                          }}},
                                        kAmple);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kAmple / 2);
  EXPECT_THAT(Said(report.findings), ElementsAre("hangs"));
  EXPECT_EQ(report.checked, 2U);
}

TEST(RunChecks, OneThatEndsByAMistakeIsSaid) {
  const DoctorReport report = RunChecks({{"one", [](DoctorNotes& /*notes*/) { ::raise(SIGKILL); }}}, kAmple);
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_THAT(report.unchecked, ElementsAre("one: the check ended with status 0x9"));
}

}  // namespace
}  // namespace muster::cli
