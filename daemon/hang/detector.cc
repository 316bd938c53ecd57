#include "daemon/hang/detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::hang {
namespace {

constexpr int64_t kDayNs = 24 * 3600 * kSecondNs;
// Below these a process tree counts as idle: what helper threads that only poll take is less.
constexpr double kIdleCpuShare = 0.01;        // of one core
constexpr double kIdleBytesPerSecond = 1024;  // eventfds of pollers count as I/O
// Samples closer together say nothing: the kernel counts CPU time in ticks of 10 ms.
constexpr int64_t kLeastSampleNs = kSecondNs;

bool IsIdle(const Activity& before, const Activity& after, int64_t elapsed_ns) {
  if (after.gpu_busy.value_or(false)) return false;
  // A process that has left the tree took its part of the sums with it: something has happened.
  if (after.cpu_ns < before.cpu_ns || after.io_bytes < before.io_bytes) return false;
  const auto elapsed = static_cast<double>(elapsed_ns);
  return static_cast<double>(after.cpu_ns - before.cpu_ns) < kIdleCpuShare * elapsed &&
         static_cast<double>(after.io_bytes - before.io_bytes) < kIdleBytesPerSecond * elapsed / kSecondNs;
}

}  // namespace

std::string DurationText(int64_t ns) {
  const double seconds = static_cast<double>(ns) / kSecondNs;
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = ns / kSecondNs;
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

Detector::Detector(Settings settings) : settings_(settings) {}

void Detector::GenerationStarted(const std::vector<Member>& members, int64_t now_ns, bool whole) {
  std::map<uint32_t, Rank> ranks;
  for (const Member& member : members) {
    Rank rank;
    rank.member = member;
    const auto before = ranks_.find(member.rank);
    if (before != ranks_.end()) {
      rank.progressed_before = before->second.progressed_before || before->second.step.has_value();
      rank.longest_pause = before->second.longest_pause;
    }
    ranks.emplace(member.rank, std::move(rank));
  }
  ranks_ = std::move(ranks);
  pausing_ = 0;
  stopped_for_ = 0;
  started_at_ = GangTime(now_ns);
  for (auto& [name, role] : roles_) {
    role.ranks.clear();
    role.advances = 0;
    role.front.reset();
  }
  for (auto& [number, rank] : ranks_) {
    rank.progress_at = rank.reported_at = started_at_;
    if (!rank.member.tracked) continue;
    Role& role = roles_[rank.member.role];
    role.name = rank.member.role;
    role.alive_at = started_at_;
    role.ranks.push_back(&rank);
  }
  running_ = known_ = true;
  judged_ = false;
  whole_ = whole;
}

void Detector::GenerationEnded() {
  running_ = false;
}

void Detector::MemberExited(uint32_t number) {
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return;
  found->second.exited = true;
  // Whatever it had on its way, nobody waits for it to be told.
  if (std::exchange(found->second.pausing, false)) --pausing_;
}

int64_t Detector::GangTime(int64_t now_ns) const {
  return (pausing_ > 0 ? stopped_since_ : now_ns) - stopped_for_;
}

void Detector::SetPausing(Rank& rank, bool pausing, int64_t now_ns) {
  if (rank.pausing == pausing) return;
  rank.pausing = pausing;
  if (pausing) {
    if (pausing_++ == 0) stopped_since_ = now_ns;
  } else if (--pausing_ == 0) {
    stopped_for_ += now_ns - stopped_since_;
  }
}

void Detector::Report(const MemberReport& report, int64_t now_ns) {
  const auto found = ranks_.find(report.rank);
  if (!running_ || found == ranks_.end() || found->second.exited) return;
  Rank& rank = found->second;
  SetPausing(rank, report.suspended || report.checkpoint_busy, now_ns);
  const int64_t now = GangTime(now_ns);
  rank.reported_at = now;
  rank.opened |= report.opened;
  TakeProgress(rank, report, now);
  if (!report.activity) return;
  if (!rank.activity) {
    rank.activity = report.activity;
    rank.activity_at = now;
    return;
  }
  const int64_t elapsed = now - rank.activity_at;
  if (elapsed < kLeastSampleNs) return;
  const bool idle = IsIdle(*rank.activity, *report.activity, elapsed);
  if (!idle) {
    rank.idle_since.reset();
  } else if (!rank.idle_since) {
    rank.idle_since = rank.activity_at;
  }
  rank.doing = !idle                                  ? Position::Doing::kBusy
               : report.activity->blocked_threads > 0 ? Position::Doing::kBlocked
                                                      : Position::Doing::kIdle;
  rank.activity = report.activity;
  rank.activity_at = now;
}

void Detector::TakeProgress(Rank& rank, const MemberReport& report, int64_t now) {
  if (!report.step) return;
  if (rank.step && rank.step == report.step && rank.calls == report.calls) return;
  const int64_t age = std::clamp<int64_t>(report.age_ns, 0, now - rank.progress_at);
  const int64_t at = now - age;
  // What it did before it said so says nothing about what it does now.
  rank.activity.reset();
  rank.idle_since.reset();
  rank.doing = Position::Doing::kUnknown;
  if (rank.step && *report.step > *rank.step) rank.advances += *report.step - *rank.step;
  if (rank.advances >= kStartSteps) rank.longest_pause = std::max(rank.longest_pause, at - rank.progress_at);
  const bool went_back = rank.step && *report.step < *rank.step;
  rank.step = report.step;
  rank.calls = report.calls;
  rank.progress_at = at;
  if (!rank.member.tracked) return;
  Role& role = roles_.at(rank.member.role);
  if (went_back) role.front.reset();  // the program counts anew
  Learn(role, *report.step, at);
  EndPatience(role, *report.step);
}

void Detector::Learn(Role& role, uint64_t step, int64_t at) {
  role.progresses = true;
  const bool starting = role.advances < kStartSteps;
  if (!starting) RememberPause(role, at - role.alive_at, at);
  role.alive_at = std::max(role.alive_at, at);
  if (!role.front) {
    role.front = step;
    role.front_at = at;
    if (starting) LearnStart(role, at);
    return;
  }
  if (step <= *role.front) return;
  const uint64_t steps = step - *role.front;
  // The first one of a generation may hold a compiler's work.
  if (role.advances > 0 && at > role.front_at) {
    role.steps[role.step_count++ % kWindow] =
        (at - role.front_at) / static_cast<int64_t>(std::min<uint64_t>(steps, INT64_MAX));
  }
  role.advances += steps;
  role.front = step;
  role.front_at = std::max(role.front_at, at);
  if (starting && role.advances >= kStartSteps) LearnStart(role, at);
}

// The role has made its first step, or its tenth one. A coordinator that has taken over does not know when the generation began, and would
// learn a start that is too short.
void Detector::LearnStart(Role& role, int64_t at) {
  if (!whole_) return;
  const bool tenth = role.advances >= kStartSteps;
  int64_t& longest = tenth ? role.starts.tenth_step_ns : role.starts.first_step_ns;
  learned_ |= tenth && at - started_at_ > longest;
  longest = std::max({longest, at - started_at_, int64_t{1}});
  for (const Rank* rank : role.ranks) role.started_on.insert(rank->member.node);
}

void Detector::Remember(const std::map<std::string, SeenStarts>& starts, bool same_gang) {
  for (const auto& [name, seen] : starts) {
    Role& role = roles_[name];
    role.name = name;
    role.starts = seen;
    role.progresses = same_gang;
  }
}

std::map<std::string, SeenStarts> Detector::Starts() const {
  std::map<std::string, SeenStarts> starts;
  for (const auto& [name, role] : roles_) {
    if (role.starts.first_step_ns > 0) starts[name] = role.starts;
  }
  return starts;
}

void Detector::RememberPause(Role& role, int64_t pause, int64_t at) const {
  if (at - role.day_began > kDayNs || at < role.day_began) {
    role.longest_before = std::exchange(role.longest_pause, 0);
    role.day_began = at;
  }
  role.longest_pause = std::max(role.longest_pause, pause);
}

void Detector::EndPatience(const Role& role, uint64_t step) {
  if (patience_ == 1) return;
  if (patient_until_ ? step > *patient_until_ : role.advances >= kStartSteps) patience_ = 1;
}

}  // namespace muster::hang
