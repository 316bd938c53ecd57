#include "daemon/hang/sampler.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/hang/progress_reader.h"
#include "daemon/hang/suspended.h"
#include "daemon/health/process_usage.h"

namespace muster::hang {
namespace {

constexpr int64_t kPausePerCost = 1000;
constexpr int64_t kLongestPauseNs = 60'000'000'000;
constexpr uint64_t kManyCalls = 5;  // of muster_step in a period
constexpr int kMostUnsaid = 5;

// What libmuster stamps its calls with.
int64_t Monotonic() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

int64_t ThreadTime() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

int64_t Ns(std::chrono::milliseconds time) {
  return std::chrono::nanoseconds(time).count();
}

}  // namespace

SamplerSettings SamplerSettingsFor(std::optional<std::chrono::milliseconds> limit) {
  using std::chrono::milliseconds;
  SamplerSettings settings;
  if (!limit || limit->count() <= 0) return settings;
  settings.period = std::clamp(*limit / 5, milliseconds(200), settings.period);
  settings.usage_period = std::clamp(*limit / 5, milliseconds(1000), settings.usage_period);
  settings.usage_after = std::clamp(*limit / 5, milliseconds(1000), settings.usage_after);
  return settings;
}

std::optional<Activity> ActivityBelow(pid_t supervisor) {
  const auto usage = ProcessTreeUsage(supervisor);
  if (!usage) return std::nullopt;
  Activity activity;
  activity.cpu_ns = static_cast<uint64_t>(std::max<int64_t>(usage->cpu_ns, 0));
  activity.io_bytes = usage->read_bytes + usage->write_bytes;
  activity.blocked_threads = usage->blocked_threads;
  return activity;
}

Sampler::Sampler(Loop& loop, Worker& worker, SamplerSettings settings, Usage usage, Send send)
    : loop_(loop),
      worker_(worker),
      settings_(settings),
      usage_(std::move(usage)),
      send_(std::move(send)),
      looking_(std::make_shared<std::atomic<bool>>(false)),
      alive_(std::make_shared<int>(0)) {}

Sampler::~Sampler() {
  Stop();
}

void Sampler::Start(const std::vector<LocalMember>& members) {
  Stop();
  const int64_t now = Monotonic();
  unsaid_ = kMostUnsaid;
  for (const LocalMember& member : members) {
    Watched& watched = members_[member.rank];
    watched.supervisor = member.supervisor;
    watched.report.rank = member.rank;
    watched.still_since = watched.looked_at = now;
  }
  timer_ = loop_.AfterPeriod(settings_.period, [this] { Tick(); });
}

void Sampler::Stop() {
  loop_.Cancel(timer_);
  timer_ = 0;
  members_.clear();
  ++round_;
}

void Sampler::MemberExited(uint32_t rank) {
  members_.erase(rank);
}

void Sampler::SetPage(uint32_t rank, std::shared_ptr<const wire::StepPage> page) {
  const auto member = members_.find(rank);
  if (member != members_.end()) member->second.page = std::move(page);
}

void Sampler::SetCheckpoints(uint32_t rank, uint32_t on_their_way) {
  const auto member = members_.find(rank);
  if (member != members_.end()) member->second.report.checkpoint_busy = on_their_way > 0;
}

void Sampler::TakeProgress(Watched& member, uint64_t step, uint64_t calls, int64_t at, int64_t now) {
  if (member.report.step == step && member.report.calls == calls) return;
  member.report.step = step;
  member.report.calls = calls;
  member.called_at = std::clamp(at, member.called_at, now);  // a program may write what it likes
  member.still_since = now;
  member.activity.reset();
}

void Sampler::Refresh(int64_t now) {
  for (auto& [rank, member] : members_) {
    if (!member.page) continue;
    if (const auto read = ReadProgress(*member.page)) {
      TakeProgress(member, read->step, read->calls, read->monotonic_ns, now);
    }
  }
}

std::vector<MemberReport> Sampler::Now() {
  const int64_t now = Monotonic();
  Refresh(now);
  std::vector<MemberReport> reports;
  reports.reserve(members_.size());
  for (const auto& [rank, member] : members_) {
    MemberReport& report = reports.emplace_back(member.report);
    if (report.step) report.age_ns = now - member.called_at;
    report.opened = member.page != nullptr;
    // One that has called since the last look has run since then.
    report.suspended = member.still_since != now && IsSuspended(member.supervisor);
  }
  return reports;
}

void Sampler::Tick() {
  timer_ = loop_.AfterPeriod(settings_.period, [this] { Tick(); });
  std::vector<MemberReport> reports = Now();
  for (MemberReport& report : reports)
    report.activity = std::exchange(members_.at(report.rank).activity, std::nullopt);
  LookAtUsage(Monotonic());
  if (!reports.empty() && IsNews(reports)) send_(std::move(reports));
}

// Of a gang whose members all make many steps between two looks, every fifth look is enough: who of them is ahead at
// one moment cannot be told from reports anyway. As soon as one is slow, or stands, or saves, all are told of.
bool Sampler::IsNews(const std::vector<MemberReport>& reports) {
  bool news = ++unsaid_ >= kMostUnsaid;
  for (const MemberReport& report : reports) {
    Watched& member = members_.at(report.rank);
    const uint64_t before = std::exchange(member.calls_before, report.calls);
    const bool fast = report.calls >= before && report.calls - before >= kManyCalls;
    const bool held = report.checkpoint_busy || report.suspended;
    news |= !fast || report.activity || held || member.was_held;
    member.was_held = held;
  }
  if (news) unsaid_ = 0;
  return news;
}

void Sampler::LookAtUsage(int64_t now) {
  if (looking_->load()) return;  // /proc is slow today: no queue of questions
  std::vector<std::pair<uint32_t, pid_t>> asked;
  for (auto& [rank, member] : members_) {
    const bool still = !member.report.step || now - member.still_since >= Ns(settings_.usage_after);
    if (!still || now - member.looked_at < std::max(Ns(settings_.usage_period), usage_pause_ns_)) continue;
    member.looked_at = now;
    asked.emplace_back(rank, member.supervisor);
  }
  if (asked.empty()) return;
  looking_->store(true);
  worker_.Do([this, asked = std::move(asked), usage = usage_, looking = looking_, mailbox = loop_.mailbox(),
              alive = std::weak_ptr<int>(alive_), round = round_, now] {
    std::vector<std::pair<uint32_t, std::optional<Activity>>> answers;
    answers.reserve(asked.size());
    const int64_t began = ThreadTime();
    for (const auto& [rank, supervisor] : asked) answers.emplace_back(rank, usage(supervisor));
    const int64_t cost = ThreadTime() - began;
    looking->store(false);
    mailbox->Post([this, answers = std::move(answers), alive, round, now, cost] {
      if (alive.expired() || round != round_) return;
      usage_pause_ns_ = std::min(cost * kPausePerCost, kLongestPauseNs);
      for (const auto& [rank, activity] : answers) {
        const auto member = members_.find(rank);
        // A member that has called meanwhile is at work, whatever was seen of it.
        if (member == members_.end() || member->second.still_since > now) continue;
        member->second.activity = activity;
      }
    });
  });
}

}  // namespace muster::hang
