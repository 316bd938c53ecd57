#include "net/preflight/plan.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <set>

namespace muster::preflight {
namespace {

// A round of the circle method: node `last` stays, the others go round. `even` counts one more than there is when that is odd,
// and who would meet it rests.
Round RoundOf(uint32_t nodes, uint32_t number) {
  const uint32_t even = nodes + nodes % 2;
  const uint32_t others = even - 1;
  Round round;
  round.reserve(nodes / 2);
  const auto add = [&](uint32_t a, uint32_t b) {
    if (a < nodes && b < nodes) round.push_back({std::min(a, b), std::max(a, b)});
  };
  add(others, number);
  const auto place = [&](uint32_t at) { return at < others ? at : at - others; };
  for (uint32_t i = 1; i < even / 2; ++i) add(place(number + i), place(number + others - i));
  return round;
}

uint32_t Rounds(uint32_t nodes) {
  return nodes < 2 ? 0 : nodes + nodes % 2 - 1;
}

}  // namespace

std::vector<Round> AllPairs(uint32_t nodes) {
  std::vector<Round> rounds;
  for (uint32_t i = 0; i < Rounds(nodes); ++i) rounds.push_back(RoundOf(nodes, i));
  return rounds;
}

std::vector<Round> QuickPairs(uint32_t nodes) {
  const uint32_t all = Rounds(nodes);
  // An odd number's nodes rest in one round: one more, so that each has its three.
  const uint32_t wanted = std::max<uint32_t>(3, std::bit_width(nodes - 1)) + nodes % 2;
  const uint32_t some = std::min(all, wanted);
  std::vector<Round> rounds;
  for (uint32_t i = 0; i < some; ++i)
    rounds.push_back(RoundOf(nodes, static_cast<uint32_t>(uint64_t{i} * all / some)));
  return rounds;
}

std::vector<Round> HomeRounds(const std::vector<uint32_t>& networks, const std::vector<Round>& rounds) {
  std::vector<bool> met(networks.size());
  for (const Round& round : rounds) {
    for (const Pair& pair : round) {
      if (networks[pair.one] == networks[pair.other]) met[pair.one] = met[pair.other] = true;
    }
  }
  std::map<uint32_t, std::vector<uint32_t>> nodes_of;
  for (uint32_t node = 0; node < networks.size(); ++node) nodes_of[networks[node]].push_back(node);
  std::vector<Round> home;
  std::vector<std::set<uint32_t>> busy;  // in each of these rounds
  const auto meet = [&](uint32_t one, uint32_t other) {
    size_t at = 0;
    while (at < home.size() && (busy[at].contains(one) || busy[at].contains(other))) ++at;
    if (at == home.size()) {
      home.emplace_back();
      busy.emplace_back();
    }
    home[at].push_back({std::min(one, other), std::max(one, other)});
    busy[at].insert({one, other});
  };
  for (const auto& [network, nodes] : nodes_of) {
    std::vector<uint32_t> lonely;
    std::ranges::copy_if(nodes, std::back_inserter(lonely), [&](uint32_t node) { return !met[node]; });
    if (nodes.size() < 2 || lonely.empty()) continue;
    for (size_t i = 0; i + 1 < lonely.size(); i += 2) meet(lonely[i], lonely[i + 1]);
    if (lonely.size() % 2 == 1) {
      const auto at = std::ranges::find(nodes, lonely.back());
      meet(lonely.back(), at == nodes.begin() ? nodes.back() : *std::prev(at));
    }
  }
  return home;
}

}  // namespace muster::preflight
