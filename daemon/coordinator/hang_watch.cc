#include "daemon/coordinator/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
  report.opened = message.opened();
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

// The ranks whose stacks differ from the one that more than half of `among` have.
std::vector<uint32_t> StandElsewhere(const std::vector<uint32_t>& among,
                                     const std::map<uint32_t, v1::Stacks::Member>& stacks) {
  std::map<std::string, std::vector<uint32_t>> by_summary;
  for (const uint32_t rank : among) {
    if (const auto stack = stacks.find(rank); stack != stacks.end() && !stack->second.summary().empty())
      by_summary[stack->second.summary()].push_back(rank);
  }
  std::vector<uint32_t> others;
  bool most = false;
  for (const auto& [summary, ranks] : by_summary) {
    if (ranks.size() * 2 > among.size()) {
      most = true;
    } else {
      others.insert(others.end(), ranks.begin(), ranks.end());
    }
  }
  std::sort(others.begin(), others.end());
  return most ? others : std::vector<uint32_t>{};
}

}  // namespace

HangWatch::HangWatch(Loop& loop, const Settings& settings, Hooks hooks)
    : loop_(loop),
      stacks_within_(settings.stacks_within),
      hooks_(std::move(hooks)),
      detector_(settings.hang),
      stacks_timer_(loop) {}

int64_t HangWatch::Now() const {
  return std::chrono::nanoseconds(loop_.Now().time_since_epoch()).count();
}

HangWatch::~HangWatch() {
  loop_.Cancel(tick_);
}

void HangWatch::Begin(uint64_t generation, const std::vector<hang::Member>& members, bool whole) {
  generation_ = generation;
  stacks_timer_.Cancel();
  found_.reset();
  detector_.GenerationStarted(members, Now(), whole);
  stragglers_.GenerationStarted(members);
  slow_.clear();
  if (tick_ == 0) tick_ = loop_.AfterPeriod(kTick, [this] { Tick(); });
}

void HangWatch::End() {
  detector_.GenerationEnded();
  loop_.Cancel(std::exchange(tick_, 0));
  stacks_timer_.Cancel();
  found_.reset();
}

uint64_t HangWatch::Take(const v1::MemberReports& reports, bool committing) {
  uint64_t step = 0;
  const int64_t now = Now();
  for (const v1::MemberReport& message : reports.members()) {
    hang::MemberReport report = ReportOf(message);
    report.checkpoint_busy |= committing;
    detector_.Report(report, now);
    stragglers_.Report(report, now);
    step = std::max(step, report.step.value_or(0));
  }
  return step;
}

void HangWatch::Exited(uint32_t rank) {
  detector_.MemberExited(rank);
  stragglers_.MemberExited(rank);
}

void HangWatch::Tick() {
  tick_ = loop_.AfterPeriod(kTick, [this] { Tick(); });
  NoteStragglers();
  if (found_) return;
  auto verdict = detector_.Tick();
  if (!verdict) return;
  hooks_.note("hang", verdict->text);
  found_.emplace(Found{.verdict = *std::move(verdict), .due = hooks_.capture(generation_), .stacks = {}});
  stacks_timer_.After(stacks_within_, [this] { Tell(); });
}

void HangWatch::NoteStragglers() {
  if (!stragglers_.Tick()) return;
  std::set<uint32_t> slow;
  for (const hang::Pace& pace : stragglers_.Paces()) {
    if (!pace.straggler) continue;
    slow.insert(pace.rank);
    if (!slow_.contains(pace.rank)) hooks_.note("straggler", fmt::format("rank {}: {}", pace.rank, pace.why));
  }
  slow_ = std::move(slow);
}

void HangWatch::Take(const v1::Stacks& stacks, uint32_t node) {
  if (!found_ || stacks.generation() != generation_) return;
  for (const v1::Stacks::Member& member : stacks.members()) found_->stacks[member.rank()] = member;
  found_->due.erase(node);
  if (found_->due.empty()) Tell();
}

void HangWatch::Tell() {
  stacks_timer_.Cancel();
  const Found found = *std::exchange(found_, std::nullopt);
  gang::Hung hung;
  hung.generation = generation_;
  hung.what = found.verdict.text;
  std::optional<uint64_t> step;
  for (const hang::Position& position : found.verdict.positions) {
    if (position.step) step = std::max(step.value_or(0), *position.step);
  }
  std::string ranks;
  for (const uint32_t rank : found.verdict.culprits) ranks += fmt::format(" {}", rank);
  hung.signature = fmt::format("hang at step {} of ranks{}", step ? fmt::format("{}", *step) : "?", ranks);
  // The culprits' whole stacks, or the first rank's, and one line of every other.
  std::vector<uint32_t> whole = found.verdict.culprits;
  if (whole.empty()) {
    whole = StandElsewhere(found.verdict.among, found.stacks);
    if (!whole.empty())
      hung.what += fmt::format("; by the stacks {} stand{} elsewhere than most", detector_.Names(whole),
                               whole.size() == 1 ? "s" : "");
  }
  if (whole.empty()) whole.push_back(0);
  for (const uint32_t rank : whole) {
    if (const auto stack = found.stacks.find(rank); stack != found.stacks.end())
      hung.report += fmt::format("rank {}:\n{}\n", rank, stack->second.text());
  }
  size_t shown = 0;
  for (const auto& [rank, member] : found.stacks) {
    const bool is_whole = std::find(whole.begin(), whole.end(), rank) != whole.end();
    if (!is_whole && ++shown <= kShownRanks)
      hung.report += fmt::format("rank {}: {}\n", rank, member.summary());
    hooks_.note("stack", fmt::format("rank {}: {}", rank, member.summary()));
  }
  const auto asked = std::count_if(found.stacks.begin(), found.stacks.end(),
                                   [](const auto& item) { return item.second.dump_asked(); });
  if (asked > 0)
    hooks_.note("dump", fmt::format("{} members' flight recorders are asked for their dumps", asked));
  hooks_.hung(std::move(hung), whole.front());
}

}  // namespace muster
