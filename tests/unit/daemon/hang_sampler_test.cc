#include "daemon/hang/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "client/libmuster/client_session.h"
#include "daemon/hang/progress_reader.h"

namespace muster::hang {
namespace {

using std::chrono::milliseconds;

class HangSampler : public testing::Test {
 protected:
  HangSampler() {
    settings_.period = milliseconds(10);
    settings_.usage_period = milliseconds(20);
    settings_.usage_after = milliseconds(50);
  }

  // Runs the loop until a report of that rank is as wanted.
  MemberReport Await(Sampler& sampler, uint32_t rank,
                     const std::function<bool(const MemberReport&)>& wanted) {
    std::optional<MemberReport> found;
    wanted_ = [&](const std::vector<MemberReport>& reports) {
      for (const MemberReport& report : reports) {
        if (!found && report.rank == rank && wanted(report)) {
          found = report;
          loop_->Stop();
        }
      }
    };
    (void)sampler;
    const auto deadline = loop_->After(std::chrono::seconds(60), [&] { loop_->Stop(); });
    loop_->Run();
    loop_->Cancel(deadline);
    EXPECT_TRUE(found) << "no such report of rank " << rank;
    return found.value_or(MemberReport{});
  }
  Sampler Make(Sampler::Usage usage = [](pid_t) { return std::optional<Activity>(); }) {
    return Sampler(*loop_, worker_, settings_, std::move(usage), [this](std::vector<MemberReport> reports) {
      if (wanted_) wanted_(reports);
    });
  }
  static std::shared_ptr<wire::StepPage> NewPage() {
    auto page = std::make_shared<wire::StepPage>();
    wire::InitPage(page.get());
    return page;
  }

  SamplerSettings settings_;
  std::unique_ptr<Loop> loop_ = std::make_unique<Loop>();
  std::function<void(const std::vector<MemberReport>&)> wanted_;
  Worker worker_;  // the last: its work may still use what is above
};

TEST_F(HangSampler, TheNewestStepIsReadFromThePage) {
  const auto page = NewPage();
  Sampler sampler = Make();
  sampler.Start({{3, ::getpid()}, {4, ::getpid()}});
  sampler.SetPage(3, page);
  EXPECT_FALSE(sampler.Now()[0].step);
  EXPECT_TRUE(sampler.Now()[0].opened);
  (void)wire::EnterStep(page.get(), 17, client::Now());
  (void)wire::EnterStep(page.get(), 18, client::Now() - 5'000'000'000);
  const auto reports = sampler.Now();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].step, 18u);
  EXPECT_EQ(reports[0].calls, 2u);
  EXPECT_GE(reports[0].age_ns, 5'000'000'000);
  EXPECT_LT(reports[0].age_ns, 60'000'000'000);
  EXPECT_FALSE(reports[1].step);
  EXPECT_FALSE(reports[1].opened) << "there is no page of it";
  EXPECT_EQ(Await(sampler, 3, [](const auto& report) { return report.step == 18; }).calls, 2u);
}

TEST_F(HangSampler, MembersThatMakeManyStepsAreToldOfSeldomAndOneThatStopsAtOnce) {
  settings_.period = milliseconds(50);
  const auto page = NewPage();
  Sampler sampler = Make();
  sampler.Start({{3, ::getpid()}});
  sampler.SetPage(3, page);
  uint64_t step = 0;
  bool stepping = true;
  int looks = 0;
  const std::function<void()> work = [&] {
    ++looks;
    for (int i = 0; stepping && i < 20; ++i) (void)wire::EnterStep(page.get(), ++step, client::Now());
    loop_->AfterPeriod(settings_.period, work);
  };
  loop_->AfterPeriod(settings_.period, work);
  int reports = 0;
  int looks_while_stepping = 0;
  Await(sampler, 3, [&](const auto&) {
    ++reports;
    if (reports == 6) {
      looks_while_stepping = std::exchange(looks, 0);
      stepping = false;
    }
    return reports == 16;
  });
  EXPECT_GT(looks_while_stepping, 20) << "for six reports";
  EXPECT_LT(looks, 20) << "for ten";
}

TEST_F(HangSampler, TheProcessesOfAMemberThatStandsStillAreLookedAt) {
  std::atomic<uint64_t> looks{0};
  Sampler sampler = Make([&](pid_t pid) -> std::optional<Activity> {
    EXPECT_EQ(pid, 4711);
    return Activity{++looks * 1000, 0, {}, 2};
  });
  sampler.Start({{0, 4711}});
  const auto report = Await(sampler, 0, [](const auto& r) { return r.activity.has_value(); });
  EXPECT_GE(report.activity->cpu_ns, 1000u);
  EXPECT_EQ(report.activity->blocked_threads, 2u);
}

TEST_F(HangSampler, TheProcessesOfAMemberThatStepsAreNot) {
  settings_.usage_after = std::chrono::hours(1);
  std::atomic<int> looks{0};
  Sampler sampler = Make([&](pid_t) -> std::optional<Activity> {
    ++looks;
    return Activity{};
  });
  sampler.Start({{0, ::getpid()}});
  const auto page = NewPage();
  sampler.SetPage(0, page);
  (void)wire::EnterStep(page.get(), 1, client::Now());
  int reports = 0;
  Await(sampler, 0, [&](const auto&) { return ++reports == 20; });
  EXPECT_EQ(looks, 0);
}

TEST_F(HangSampler, AnotherGenerationKnowsNothingOfTheOneBefore) {
  Sampler sampler = Make();
  sampler.Start({{0, ::getpid()}});
  const auto page = NewPage();
  sampler.SetPage(0, page);
  sampler.SetPage(9, page);  // of nobody here
  (void)wire::EnterStep(page.get(), 5, client::Now());
  EXPECT_EQ(sampler.Now()[0].step, 5u);
  sampler.SetCheckpoints(0, 1);
  EXPECT_TRUE(sampler.Now()[0].checkpoint_busy);
  sampler.Start({{0, ::getpid()}, {1, ::getpid()}});
  const auto reports = sampler.Now();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_FALSE(reports[0].step);
  EXPECT_FALSE(reports[0].checkpoint_busy);
  sampler.MemberExited(0);
  EXPECT_EQ(sampler.Now().size(), 1u);
  sampler.Stop();
  EXPECT_TRUE(sampler.Now().empty());
}

TEST_F(HangSampler, WhatIsOnAPageIsNotBelievedBlindly) {
  const auto page = std::make_shared<wire::StepPage>();
  Sampler sampler = Make();
  sampler.Start({{0, ::getpid()}});
  sampler.SetPage(0, page);
  EXPECT_FALSE(sampler.Now()[0].step);  // of zeros
  wire::InitPage(page.get());
  EXPECT_FALSE(sampler.Now()[0].step);
  page->sequence = 1;  // for ever in the middle of a write
  page->step = 7;
  page->calls = 1;
  page->monotonic_ns = INT64_MAX;
  const auto report = sampler.Now()[0];
  EXPECT_EQ(report.step, 7u);
  EXPECT_GE(report.age_ns, 0);
}

TEST_F(HangSampler, AShortLimitIsWatchedMoreClosely) {
  EXPECT_EQ(SamplerSettingsFor({}).period, milliseconds(1000));
  EXPECT_EQ(SamplerSettingsFor(milliseconds(0)).period, milliseconds(1000));
  const SamplerSettings close = SamplerSettingsFor(milliseconds(3000));
  EXPECT_EQ(close.period, milliseconds(600));
  EXPECT_EQ(close.usage_after, milliseconds(1000));
}

TEST_F(HangSampler, WhatAProcessTreeUsesIsRead) {
  const auto activity = ActivityBelow(::getpid());
  ASSERT_TRUE(activity);
  EXPECT_GT(activity->io_bytes, 0u);
  EXPECT_FALSE(ActivityBelow(1 << 29));
}

}  // namespace
}  // namespace muster::hang
