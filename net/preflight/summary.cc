#include "net/preflight/summary.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

namespace muster::preflight {

// Of what a measurement reached, so much other traffic has taken nothing from it.
constexpr double kAlone = 0.1;

// Of the settings' rate a good link carries so much payload at least: senders keep to 94 % of it.
constexpr double kPart = 0.94 * 0.75;

double UsualRate(const std::vector<Measured>& measured) {
  std::vector<double> rates;
  const auto gather = [&](double other_part) {
    for (const Measured& one : measured) {
      if (one.mbit_s > 0 && std::max(one.other_out, one.other_in) <= other_part * one.mbit_s)
        rates.push_back(one.mbit_s);
    }
  };
  gather(kAlone);
  if (rates.empty()) gather(std::numeric_limits<double>::infinity());
  if (rates.empty()) return 0;
  std::ranges::sort(rates);
  return rates[rates.size() * 3 / 4];
}

Expected ExpectedOf(const std::vector<Measured>& measured, int64_t rate, double lossy_above) {
  Expected expected;
  expected.lossy_above = lossy_above;
  for (const bool verbs : {false, true}) {
    std::vector<Measured> same;
    std::ranges::copy_if(measured, std::back_inserter(same),
                         [&](const Measured& one) { return one.verbs == verbs; });
    const double usual = UsualRate(same);
    expected.mbit_s[verbs ? 1 : 0] = rate > 0 ? std::min(usual, static_cast<double>(rate)) : usual;
  }
  return expected;
}

std::optional<Measured> BelowRate(const std::vector<Measured>& measured, int64_t rate) {
  constexpr double kOneConnection = 10'000;  // Mbit/s
  const bool verbs = std::ranges::any_of(measured, &Measured::verbs);
  const auto most = static_cast<double>(rate);
  const double should = kPart * (verbs ? most : std::min(most, kOneConnection));
  std::vector<Measured> alone;
  std::ranges::copy_if(measured, std::back_inserter(alone), [&](const Measured& one) {
    return one.verbs == verbs && one.mbit_s > 0 &&
           std::max(one.other_out, one.other_in) <= kAlone * one.mbit_s;
  });
  if (alone.empty()) return std::nullopt;
  std::ranges::sort(alone, {}, &Measured::mbit_s);
  const Measured& usual = alone[alone.size() * 3 / 4];
  return usual.mbit_s < should ? std::optional(usual) : std::nullopt;
}

uint64_t FewestPackets(const std::vector<Measured>& measured) {
  std::map<std::pair<uint32_t, Direction>, uint64_t> packets;
  for (const Measured& one : measured) {
    packets[{one.from, Direction::kOut}] += one.packets;
    packets[{one.to, Direction::kIn}] += one.packets;
  }
  if (packets.empty()) return 0;
  return std::ranges::min_element(packets, {}, [](const auto& one) { return one.second; })->second;
}

Latency LatencyOf(const std::vector<Measured>& measured) {
  std::map<std::pair<uint32_t, uint32_t>, double> pairs;
  for (const Measured& one : measured) {
    if (one.latency_us <= 0) continue;
    const auto [place, added] = pairs.try_emplace(std::minmax(one.from, one.to), one.latency_us);
    if (!added) place->second = std::min(place->second, one.latency_us);
  }
  Latency latency;
  std::vector<double> all;
  for (const auto& [pair, us] : pairs) {
    all.push_back(us);
    if (us > latency.longest_us) latency = {0, us, pair.first, pair.second};
  }
  if (all.empty()) return latency;
  std::ranges::sort(all);
  latency.usual_us = all[all.size() / 2];
  return latency;
}

std::set<uint32_t> SharedLinks(const std::vector<Measured>& measured, size_t nodes,
                               const Expected& expected) {
  struct Count {
    int much = 0;
    int all = 0;
  };
  std::vector<Count> out(nodes);
  std::vector<Count> in(nodes);
  const auto add = [&](Count& count, double other) {
    ++count.all;
    if (expected.IsShared(other)) ++count.much;
  };
  for (const Measured& one : measured) {
    add(out[one.from], one.other_out);
    add(in[one.to], one.other_in);
  }
  const auto most = [](const Count& count) { return 2 * count.much > count.all; };
  std::set<uint32_t> shared;
  if (expected.Most() <= 0) return shared;
  for (uint32_t node = 0; node < nodes; ++node) {
    if (most(out[node]) || most(in[node])) shared.insert(node);
  }
  return shared;
}

}  // namespace muster::preflight
