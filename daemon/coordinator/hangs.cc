// Members that do not get on: what agents report goes to the detector; on its verdict every member's stacks are
// asked for, and then the state machine is told.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "daemon/coordinator/coordinator.h"

namespace muster {
namespace {

constexpr auto kTick = std::chrono::milliseconds(1000);
constexpr size_t kShownRanks = 16;

hang::MemberReport ReportOf(const v1::MemberReport& message) {
  hang::MemberReport report;
  report.rank = message.rank();
  if (message.has_step()) report.step = message.step();
  report.calls = message.calls();
  report.age_ns = message.age_ns();
  report.checkpoint_busy = message.checkpoint_busy();
  report.suspended = message.suspended();
  if (message.has_activity()) {
    hang::Activity activity;
    activity.cpu_ns = message.cpu_ns();
    activity.io_bytes = message.io_bytes();
    activity.blocked_threads = message.blocked_threads();
    if (message.gpu() != 0) activity.gpu_busy = message.gpu() == 2;
    report.activity = activity;
  }
  return report;
}

}  // namespace

// After every event: a generation that has begun to run is watched, one that ends is not any more.
void Coordinator::WatchProgress(gang::State before, uint64_t generation_before) {
  if (generation_before != gang_->generation()) detector_.Forget();
  const bool was = before == gang::State::kRunning;
  const bool is = gang_->state() == gang::State::kRunning;
  if (is && (!was || generation_before != gang_->generation())) {
    std::vector<hang::Member> members;
    for (const gang::Gang::Member& member : gang_->members()) {
      if (!member.rank) continue;
      const gang::Role& role = gang_->RoleOf(member.node);
      members.push_back({*member.rank, role.name, gang_->nodes()[member.node].name,
                         role.kind == gang::RoleKind::kTracked || role.kind == gang::RoleKind::kChief});
    }
    detector_.GenerationStarted(members, BoottimeNs());
    stragglers_.GenerationStarted(members);
    slow_.clear();
    if (hang_timer_ == 0) hang_timer_ = loop_.AfterPeriod(kTick, [this] { TickHangs(); });
  } else if (was && !is) {
    detector_.GenerationEnded();
    loop_.Cancel(std::exchange(hang_timer_, 0));
    loop_.Cancel(std::exchange(stacks_timer_, 0));
    verdict_.reset();
  }
}

void Coordinator::TakeReports(const v1::MemberReports& reports) {
  if (reports.generation() != gang_->generation()) return;
  uint64_t step = 0;
  const bool committing = saves_.Committing(gang_->generation());
  for (const v1::MemberReport& message : reports.members()) {
    hang::MemberReport report = ReportOf(message);
    // Who waits for that waits for the store, not for another member.
    report.checkpoint_busy |= committing;
    detector_.Report(report, BoottimeNs());
    stragglers_.Report(report, BoottimeNs());
    step = std::max(step, report.step.value_or(0));
  }
  if (step > gang_->max_step()) Feed(gang::Progressed{step});
}

void Coordinator::TickHangs() {
  hang_timer_ = loop_.AfterPeriod(kTick, [this] { TickHangs(); });
  if (stragglers_.Tick()) {
    std::set<uint32_t> slow;
    for (const hang::Pace& pace : stragglers_.Paces()) {
      if (!pace.straggler) continue;
      slow.insert(pace.rank);
      if (!slow_.contains(pace.rank))
        AddHistory("straggler", fmt::format("rank {}: {}", pace.rank, pace.why));
    }
    slow_ = std::move(slow);
  }
  if (verdict_) return;
  const auto verdict = detector_.Tick();
  if (!verdict) return;
  verdict_ = {*verdict, gang_->generation()};
  AddHistory("hang", verdict->text);
  stacks_.clear();
  stacks_due_.clear();
  auto message = NewMessage();
  message.mutable_capture_stacks()->set_generation(gang_->generation());
  for (const uint32_t node : gang_->active()) {
    if (!gang_->nodes()[node].present) continue;
    stacks_due_.insert(node);
    Send(node, message);
  }
  stacks_timer_ = loop_.After(std::chrono::milliseconds(config_.hang_report_ms), [this] {
    // What has come by now is shown.
    stacks_timer_ = 0;
    ReportHang();
  });
}

void Coordinator::TakeStacks(const v1::Stacks& stacks, uint32_t node) {
  if (!verdict_ || stacks.generation() != verdict_->second) return;
  for (const v1::Stacks::Member& member : stacks.members()) stacks_[member.rank()] = member;
  stacks_due_.erase(node);
  if (stacks_due_.empty()) ReportHang();
}

void Coordinator::ReportHang() {
  loop_.Cancel(std::exchange(stacks_timer_, 0));
  if (!verdict_) return;
  const auto [verdict, generation] = *std::exchange(verdict_, std::nullopt);
  gang::Hung hung;
  hung.generation = generation;
  hung.what = verdict.text;
  std::optional<uint64_t> step;
  for (const hang::Position& position : verdict.positions) {
    if (position.step) step = std::max(step.value_or(0), *position.step);
  }
  std::string who;
  for (const uint32_t rank : verdict.culprits) who += fmt::format(" {}", rank);
  hung.signature = fmt::format("hang at step {} of ranks{}", step ? fmt::format("{}", *step) : "?", who);
  // The culprits' whole stacks, or the first rank's, and one line of every other.
  std::vector<uint32_t> whole = verdict.culprits;
  if (whole.empty()) whole.push_back(0);
  for (const uint32_t rank : whole) {
    if (const auto found = stacks_.find(rank); found != stacks_.end())
      hung.report += fmt::format("rank {}:\n{}\n", rank, found->second.text());
  }
  size_t shown = 0;
  for (const auto& [rank, member] : stacks_) {
    const bool is_whole = std::find(whole.begin(), whole.end(), rank) != whole.end();
    if (is_whole || ++shown > kShownRanks) continue;
    hung.report += fmt::format("rank {}: {}\n", rank, member.summary());
  }
  hung.task = TaskOf(whole.front());
  for (const auto& [rank, member] : stacks_) {
    AddHistory("stack", fmt::format("rank {}: {}", rank, member.summary()));
  }
  Feed(hung);
}

}  // namespace muster
