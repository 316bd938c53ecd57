// The detector's second half: from what is known to a verdict.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "daemon/hang/detector.h"

namespace muster::hang {
namespace {

constexpr uint64_t kEnoughSteps = 10;  // for a median
constexpr int64_t kPatienceFactor = 4;
constexpr int64_t kMostPatience = 16;
constexpr int64_t kLonerFactor = 3;
constexpr int64_t kStartFactor = 3;
constexpr int64_t kPauseFactor = 2;
constexpr double kMadToSigma = 1.4826;  // of a normal distribution
constexpr size_t kNamed = 8;            // ranks that a sentence lists

struct Spread {
  int64_t median = 0;
  int64_t mad = 0;
};

Spread SpreadOf(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const int64_t median = *middle;
  for (int64_t& value : values) value = std::abs(value - median);
  std::nth_element(values.begin(), middle, values.end());
  return {median, *middle};
}

bool DoesNothing(Position::Doing doing) {
  return doing == Position::Doing::kIdle || doing == Position::Doing::kBlocked;
}

}  // namespace

std::optional<Verdict> Detector::Tick() {
  if (!running_ || judged_ || settings_.limit_ns == 0) return std::nullopt;
  for (const auto& [name, role] : roles_) {
    if (auto verdict = JudgeRole(role)) return verdict;
    if (auto verdict = JudgeLoner(role)) return verdict;
  }
  return AnySteps() ? std::nullopt : JudgeIdle();
}

bool Detector::AnySteps() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& item) {
    return item.second.member.tracked && item.second.step.has_value();
  });
}

// ---- limits

void Detector::Lengthen(Limit& limit, const char* key, std::optional<int64_t> given) {
  if (given && *given > limit.ns) limit = {*given, fmt::format("{}={}", key, DurationText(*given)), true};
}

// Caches of compilers and of file systems are a node's own: where the program has not started before it may take longer.
Detector::Limit Detector::LearnedStart(const Role& role, int64_t longest) const {
  const bool known = std::all_of(role.ranks.begin(), role.ranks.end(),
                                 [&](const Rank* r) { return role.started_on.contains(r->member.node); });
  return {std::max(known ? settings_.busy_floor_ns : settings_.startup_ns, kStartFactor * longest),
          fmt::format("the start of a program, which took {} at most", DurationText(longest))};
}

// None: nobody knows how long that may take.
std::optional<Detector::Limit> Detector::FirstStepLimit(const Role& role) const {
  Limit limit;
  // A role beside others that step may wait for them, as an evaluator does for a checkpoint.
  const bool beside = AnySteps();
  if (!beside) Lengthen(limit, "startup", settings_.first_step_ns);
  if (limit.given) return limit;
  if (role.starts.first_step_ns == 0) return std::nullopt;
  limit = LearnedStart(role, std::max(role.starts.first_step_ns, role.starts.tenth_step_ns));
  if (beside) limit.ns = std::max(limit.ns, settings_.startup_ns);
  Lengthen(limit, "hang", settings_.limit_ns);
  return limit;
}

// From a role's first step to its tenth one.
Detector::Limit Detector::TenthStepLimit(const Role& role) const {
  Limit limit{settings_.startup_ns, "the start of a program"};
  if (role.starts.tenth_step_ns > 0) limit = LearnedStart(role, role.starts.tenth_step_ns);
  Lengthen(limit, "startup", settings_.first_step_ns);
  return limit;
}

Detector::Limit Detector::StepLimit(const Role& role, bool idle) const {
  Limit limit;
  Lengthen(limit, "hang", settings_.limit_ns);
  if (limit.given) return limit;
  limit = idle ? Limit{settings_.idle_floor_ns, "those that the others wait for do nothing at all"}
               : Limit{settings_.busy_floor_ns, "the least for a member that may be at work"};
  const auto raise = [&limit](double ns, auto source) {
    if (ns > static_cast<double>(limit.ns)) limit = {static_cast<int64_t>(std::min(ns, 1e18)), source()};
  };
  if (role.step_count >= kEnoughSteps) {
    const auto size = std::min<uint64_t>(role.step_count, kWindow);
    const Spread spread = SpreadOf({role.steps.begin(), role.steps.begin() + static_cast<ptrdiff_t>(size)});
    const double usual = static_cast<double>(spread.median) +
                         settings_.deviations * kMadToSigma * static_cast<double>(spread.mad);
    raise(settings_.factor * usual, [&] {
      return fmt::format("{:.3g} times a step, which takes {} +- {}", settings_.factor,
                         DurationText(spread.median), DurationText(spread.mad));
    });
  }
  const int64_t pause = std::max(role.longest_pause, role.longest_before);
  raise(static_cast<double>(kPauseFactor) * static_cast<double>(pause), [&] {
    return fmt::format("{} times the longest pause so far, {}", kPauseFactor, DurationText(pause));
  });
  if (role.advances < kStartSteps) {
    const Limit start = TenthStepLimit(role);
    if (start.ns > limit.ns) limit = start;
  }
  return limit;
}

// ---- who

Detector::Ranks Detector::Running(const Role& role) {
  Ranks running;
  for (const Rank* rank : role.ranks) {
    if (!rank->exited) running.push_back(rank);
  }
  return running;
}

// Those at the lowest step, when others have entered a newer one.
Detector::Ranks Detector::Behind(const Ranks& running) {
  size_t with_step = 0;
  std::optional<uint64_t> newest;
  for (const Rank* rank : running) {
    if (!rank->step) continue;
    ++with_step;
    newest = std::max(newest.value_or(0), *rank->step);
  }
  if (!newest) return {};
  Ranks behind;
  Ranks not_begun;
  std::optional<uint64_t> lowest;
  for (const Rank* rank : running) {
    if (!rank->step) {
      // In many programs only one rank calls progress().
      if (rank->progressed_before || with_step * 2 >= running.size()) not_begun.push_back(rank);
      continue;
    }
    if (*rank->step == *newest) continue;
    if (!lowest || *rank->step < *lowest) {
      lowest = rank->step;
      behind.clear();
    }
    if (*rank->step == *lowest) behind.push_back(rank);
  }
  return not_begun.empty() ? behind : not_begun;
}

// Those that have not opened the gang, when others have. In some programs only one rank does.
Detector::Ranks Detector::NotOpened(const Ranks& running) {
  Ranks not_opened;
  std::copy_if(running.begin(), running.end(), std::back_inserter(not_opened),
               [](const Rank* rank) { return !rank->opened; });
  return not_opened.size() * 2 < running.size() ? not_opened : Ranks{};
}

// Those in uninterruptible sleep; else the few that are idle among busy ones, or busy among idle ones.
Detector::Ranks Detector::Different(const Ranks& among) {
  Ranks idle;
  Ranks busy;
  Ranks blocked;
  for (const Rank* rank : among) {
    if (rank->doing == Position::Doing::kIdle) idle.push_back(rank);
    if (rank->doing == Position::Doing::kBusy) busy.push_back(rank);
    if (rank->doing == Position::Doing::kBlocked) blocked.push_back(rank);
  }
  if (!blocked.empty() && blocked.size() < among.size()) return blocked;
  if (idle.empty() || busy.empty()) return {};
  if (idle.size() * 2 < among.size()) return idle;
  if (busy.size() * 2 < among.size()) return busy;
  return {};
}

Detector::Culprits Detector::Blame(const Ranks& running) {
  Culprits found{Behind(running), {}};
  if (!found.ranks.empty()) {
    uint64_t newest = 0;
    for (const Rank* rank : running) newest = std::max(newest, rank->step.value_or(0));
    const auto entered =
        std::count_if(running.begin(), running.end(), [&](const Rank* r) { return r->step == newest; });
    if (found.ranks.size() * 2 > running.size()) {
      if (Ranks different = Different(found.ranks); !different.empty()) found.ranks = std::move(different);
    }
    found.doing =
        fmt::format("did not enter step {}, as {} other{} did", newest, entered, entered == 1 ? "" : "s");
    return found;
  }
  const bool begun =
      std::any_of(running.begin(), running.end(), [](const Rank* r) { return r->step.has_value(); });
  if (!begun) found.ranks = NotOpened(running);
  if (!found.ranks.empty()) {
    found.doing = fmt::format("ha{} not opened the gang, as {} others have",
                              found.ranks.size() == 1 ? "s" : "ve", running.size() - found.ranks.size());
    return found;
  }
  found.ranks = Different(running);
  if (found.ranks.empty()) {
    found.doing = begun ? "all are at the same step and do the same" : "all do the same";
    return found;
  }
  const auto doing = found.ranks.front()->doing;
  found.doing = doing == Position::Doing::kBlocked ? "waits in the kernel for a device or a file system"
                : doing == Position::Doing::kIdle  ? "does nothing while the others are busy"
                                                   : "is busy while the others do nothing";
  return found;
}

std::string Detector::Names(const Ranks& ranks) {
  std::string names;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    const Member& member = ranks[i]->member;
    names += fmt::format("{}rank {}", i == 0 ? "" : ", ", member.rank);
    if (!member.node.empty()) names += " on " + member.node;
  }
  if (ranks.size() > kNamed) names += fmt::format(" and {} more", ranks.size() - kNamed);
  return names;
}

std::string Detector::Names(const std::vector<uint32_t>& ranks) const {
  Ranks known;
  for (const uint32_t rank : ranks) {
    if (const auto found = ranks_.find(rank); found != ranks_.end()) known.push_back(&found->second);
  }
  return Names(known);
}

std::string Detector::WaitedFor(uint32_t ended) const {
  const auto found = ranks_.find(ended);
  if (!known_ || found == ranks_.end() || !found->second.member.tracked) return "";
  const Ranks running = Running(roles_.at(found->second.member.role));
  const Culprits culprits = Blame(running);
  const bool itself = std::any_of(culprits.ranks.begin(), culprits.ranks.end(),
                                  [&](const Rank* rank) { return rank->member.rank == ended; });
  if (culprits.ranks.empty() || itself || culprits.ranks.size() * 2 > running.size()) return "";
  return Names(culprits.ranks) + " " + culprits.doing;
}

// ---- the three rules

std::optional<Verdict> Detector::JudgeRole(const Role& role) {
  const Ranks running = Running(role);
  if (running.empty()) return std::nullopt;
  // A rank whose agent has not been heard may have made steps meanwhile: what is known counts, not what time it is.
  int64_t known_until = INT64_MAX;
  bool stepping = false;
  bool opened = false;
  for (const Rank* rank : running) {
    known_until = std::min(known_until, rank->reported_at);
    stepping |= rank->step.has_value();
    opened |= rank->opened;
  }
  // A program that has never stepped may be none that does; a role beside those that step is one that waits, or serves.
  if (!role.progresses && (!opened || AnySteps())) return std::nullopt;
  const int64_t stalled = known_until - (stepping ? role.alive_at : started_at_);
  const Ranks last = Behind(running);
  const Ranks& waited_for = last.empty() ? running : last;
  const bool idle =
      std::all_of(waited_for.begin(), waited_for.end(), [](const Rank* r) { return DoesNothing(r->doing); });
  std::optional<Limit> limit = stepping ? StepLimit(role, idle) : FirstStepLimit(role);
  if (!limit) return std::nullopt;
  if (!limit->given) limit->ns *= patience_;
  if (stalled < limit->ns) return std::nullopt;

  const Culprits culprits = Blame(running);
  return Give(&role, culprits.ranks, stalled, *limit,
              stepping ? fmt::format("role {} has made no step for {}: ", role.name, DurationText(stalled))
                       : fmt::format("role {} has not begun to step {} after the start: ", role.name,
                                     DurationText(stalled)),
              culprits.doing);
}

std::optional<Verdict> Detector::JudgeLoner(const Role& role) {
  for (const Rank* rank : Running(role)) {
    if (!rank->step || rank->advances < kStartSteps) continue;
    if (!role.front || *role.front < *rank->step || *role.front - *rank->step < kStartSteps) continue;
    const int64_t stalled = rank->reported_at - rank->progress_at;
    Limit limit = StepLimit(role, false);
    if (!limit.given) limit.ns = std::max(limit.ns, kPauseFactor * rank->longest_pause) * patience_;
    limit.ns *= kLonerFactor;
    if (stalled < limit.ns) continue;
    limit.source = fmt::format("{} times as long for one alone: {}", kLonerFactor, limit.source);
    return Give(&role, {rank}, stalled, limit, "",
                fmt::format("has made no step for {} while others of role {} go on", DurationText(stalled),
                            role.name));
  }
  return std::nullopt;
}

std::optional<Verdict> Detector::JudgeIdle() {
  int64_t idle_for = INT64_MAX;
  bool any = false;
  Ranks running;
  for (const auto& [name, role] : roles_) {
    for (const Rank* rank : Running(role)) {
      if (!rank->idle_since) return std::nullopt;
      idle_for = std::min(idle_for, rank->activity_at - *rank->idle_since);
      running.push_back(rank);
      any = true;
    }
  }
  if (!any) return std::nullopt;
  Limit limit{settings_.idle_ns, "the least for a program that does not call progress()"};
  // A short limit is meant for steps: a program that has not made one may wait for its data or its licence.
  Lengthen(limit, "hang", settings_.limit_ns);
  Lengthen(limit, "startup", settings_.first_step_ns);
  if (!limit.given) limit.ns *= patience_;
  if (idle_for < limit.ns) return std::nullopt;
  const Ranks blocked = Different(running);
  return Give(nullptr, blocked, idle_for, limit,
              fmt::format("no member has used CPU or GPU or read or written anything for {}",
                          DurationText(idle_for)) +
                  (blocked.empty() ? "" : "; "),
              blocked.empty() ? "" : "waits in the kernel for a device or a file system");
}

Verdict Detector::Give(const Role* role, const Ranks& culprits, int64_t stalled, const Limit& limit,
                       const std::string& before, const std::string& after) {
  judged_ = true;
  if (!limit.given) patience_ = std::min(patience_ * kPatienceFactor, kMostPatience);
  patient_until_ = role != nullptr ? role->front : std::nullopt;

  Verdict verdict;
  verdict.stalled_ns = stalled;
  verdict.limit_ns = limit.ns;
  verdict.limit_source = limit.source;
  for (const Rank* rank : culprits) verdict.culprits.push_back(rank->member.rank);
  for (const auto& [name, one] : roles_) {
    if (role != nullptr && role != &one) continue;
    for (const Rank* rank : Running(one)) verdict.among.push_back(rank->member.rank);
  }
  for (const auto& [number, rank] : ranks_) {
    if (!rank.exited) verdict.positions.push_back({number, rank.step, rank.doing});
  }
  std::string names = Names(culprits);
  if (!names.empty() && !after.empty()) names += " ";
  verdict.text =
      fmt::format("{}{}{} (limit {}: {})", before, names, after, DurationText(limit.ns), limit.source);
  return verdict;
}

}  // namespace muster::hang
