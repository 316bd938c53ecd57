#include "daemon/hang/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace muster::hang {
namespace {

constexpr double kSmooth = 0.2;  // weight of the newest value
constexpr double kMadToDeviation = 1.4826;
constexpr size_t kFewestRanks = 3;  // of two, nobody can say which one differs
constexpr size_t kRemembered = 8;   // steps of a rank

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct SpreadOfSteps {
  double median = 0;
  double mad = 0;
};

SpreadOfSteps SpreadOfStepsOf(std::vector<double> values) {
  SpreadOfSteps spread;
  spread.median = Median(values);
  for (double& value : values) value = std::abs(value - spread.median);
  spread.mad = Median(std::move(values));
  return spread;
}

double Smoothed(double before, double value, double weight) {
  return before + weight * (value - before);
}

std::string Text(double ns) {
  return DurationText(static_cast<int64_t>(ns));
}

}  // namespace

Stragglers::Stragglers(StragglerSettings settings) : settings_(settings) {}

void Stragglers::GenerationStarted(const std::vector<Member>& members) {
  ranks_.clear();
  for (const Member& member : members) {
    if (member.tracked) ranks_[member.rank].role = member.role;
  }
}

void Stragglers::MemberExited(uint32_t rank) {
  ranks_.erase(rank);
}

void Stragglers::Report(const MemberReport& report, int64_t now_ns) {
  const auto found = ranks_.find(report.rank);
  if (found == ranks_.end() || !report.step) return;
  Rank& rank = found->second;
  if (rank.step == report.step) return;
  const int64_t at = now_ns - std::max<int64_t>(report.age_ns, 0);
  if (rank.step && *report.step > *rank.step && at > rank.at) {
    const auto steps = static_cast<double>(*report.step - *rank.step);
    // One slow step, a checkpoint's or a page fault's, is not to move the mean much.
    const double pace =
        std::min(static_cast<double>(at - rank.at) / steps, rank.pace == 0 ? 1e18 : 2 * rank.pace);
    // Many steps in one report are worth as many single ones.
    const double weight = 1 - std::pow(1 - kSmooth, std::min(steps, 100.0));
    rank.pace = rank.pace == 0 ? pace : Smoothed(rank.pace, pace, weight);
  } else {
    rank.pace = 0;  // the first one, or the program counts anew
    rank.late.reset();
    rank.entered.clear();
    rank.judged_step = *report.step;
  }
  rank.step = report.step;
  rank.at = at;
  rank.entered[*report.step] = at;
  if (rank.entered.size() > kRemembered) rank.entered.erase(rank.entered.begin());
}

bool Stragglers::Tick() {
  std::map<std::string, std::vector<Rank*>> roles;
  for (auto& [number, rank] : ranks_) {
    if (rank.step && rank.pace > 0) roles[rank.role].push_back(&rank);
  }
  bool changed = false;
  for (const auto& [name, ranks] : roles) {
    if (ranks.size() < kFewestRanks) continue;
    MeasureLateness(ranks);
    changed |= Judge(ranks);
  }
  return changed;
}

// Of the newest step of which it is known when three of four ranks have entered it, else their order in time means nothing.
// That need not be anybody's newest: nodes report at different moments, and one may always be a step ahead in its report.
void Stragglers::MeasureLateness(const std::vector<Rank*>& ranks) const {
  std::map<uint64_t, size_t> known;
  for (const Rank* rank : ranks) {
    for (const auto& [step, at] : rank->entered) ++known[step];
  }
  const auto newest = std::find_if(known.rbegin(), known.rend(),
                                   [&](const auto& step) { return step.second * 4 >= ranks.size() * 3; });
  if (newest == known.rend()) return;
  std::vector<double> entered;
  const int64_t base = ranks.front()->at;
  for (const Rank* rank : ranks) {
    if (const auto at = rank->entered.find(newest->first); at != rank->entered.end())
      entered.push_back(static_cast<double>(at->second - base));
  }
  const double median = Median(entered);
  for (Rank* rank : ranks) {
    const auto at = rank->entered.find(newest->first);
    if (at == rank->entered.end() || rank->late_step == newest->first) continue;
    rank->late_step = newest->first;
    const double late = std::clamp(static_cast<double>(at->second - base) - median, -rank->pace, rank->pace);
    rank->late = rank->late ? Smoothed(*rank->late, late, kSmooth) : late;
  }
}

bool Stragglers::Judge(const std::vector<Rank*>& ranks) {
  std::vector<double> paces;
  std::vector<double> lates;
  for (const Rank* rank : ranks) {
    paces.push_back(rank->pace);
    if (rank->late) lates.push_back(*rank->late);
  }
  const SpreadOfSteps pace = SpreadOfStepsOf(paces);
  const bool enough_lates = lates.size() >= kFewestRanks;
  const SpreadOfSteps late = enough_lates ? SpreadOfStepsOf(lates) : SpreadOfSteps{};
  const double share = settings_.share * pace.median;
  const auto outside = [&](double value, const SpreadOfSteps& spread) {
    return value - spread.median > share &&
           value - spread.median > settings_.deviations * kMadToDeviation * spread.mad;
  };
  bool changed = false;
  for (Rank* rank : ranks) {
    if (*rank->step == rank->judged_step) continue;  // nothing new
    const uint64_t steps = *rank->step - rank->judged_step;
    rank->judged_step = *rank->step;
    rank->slow_steps = outside(rank->pace, pace) ? rank->slow_steps + steps : 0;
    rank->late_steps =
        enough_lates && rank->late && outside(*rank->late, late) ? rank->late_steps + steps : 0;
    std::string why;
    if (rank->slow_steps >= settings_.steps) {
      why = fmt::format("a step takes {}, the others {}", Text(rank->pace), Text(pace.median));
    } else if (rank->late_steps >= settings_.steps) {
      why = fmt::format("enters a step {} after the others; a step takes {}", Text(*rank->late - late.median),
                        Text(pace.median));
    }
    changed |= why.empty() != rank->why.empty();
    rank->why = std::move(why);
  }
  return changed;
}

std::vector<Pace> Stragglers::Paces() const {
  std::vector<Pace> paces;
  paces.reserve(ranks_.size());
  for (const auto& [number, rank] : ranks_) {
    paces.push_back({number, rank.step, static_cast<int64_t>(rank.pace),
                     static_cast<int64_t>(rank.late.value_or(0)), !rank.why.empty(), rank.why});
  }
  return paces;
}

}  // namespace muster::hang
