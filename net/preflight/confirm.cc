#include "net/preflight/confirm.h"

#include <algorithm>

namespace muster::preflight {

using Scope = Suspect::Scope;

namespace {

constexpr size_t kWitnesses = 2;

// A pair has no other witness than itself: a host that is busy for a moment must not look like a bad way. Most of all not like a slow one.
int TimesAgain(Trouble trouble) {
  return trouble == Trouble::kSlow || trouble == Trouble::kLossy ? 5 : 3;
}

bool AllShow(Trouble trouble, const std::vector<Measured>& again, const Expected& expected) {
  if (trouble != Trouble::kLossy)
    return std::ranges::all_of(again, [&](const Measured& one) { return Is(trouble, one, again, expected); });
  uint64_t lost = 0;
  uint64_t packets = 0;
  for (const Measured& one : again) {
    if (Shared(one, expected)) continue;
    lost += one.lost;
    packets += one.packets;
  }
  return packets > 0 && static_cast<double>(lost) > expected.lossy_above * static_cast<double>(packets);
}

}  // namespace

std::vector<Way> Witnesses(const Suspect& suspect, const Layout& layout, const std::set<uint32_t>& able,
                           const std::set<uint32_t>& shared, const std::vector<Suspect>& suspects) {
  std::vector<Way> ways;
  const auto add = [&](uint32_t own, uint32_t other) {
    if (suspect.direction != Direction::kIn) ways.push_back({own, other});
    if (suspect.direction != Direction::kOut) ways.push_back({other, own});
  };
  if (suspect.scope == Scope::kPair) {
    if (!able.contains(suspect.node) || !able.contains(suspect.other)) return ways;
    for (int i = 0; i < TimesAgain(suspect.trouble); ++i) add(suspect.node, suspect.other);
    return ways;
  }
  std::vector<uint32_t> inside;
  std::vector<uint32_t> outside;
  for (const uint32_t node : able) {
    const auto of_it = [&](const Suspect& one) {
      return one.scope == Scope::kNode ? one.node == node
                                       : one.scope == Scope::kSwitch && one.node == layout.switches[node];
    };
    const bool suspected = std::ranges::any_of(suspects, of_it);
    if (suspect.scope == Scope::kNetwork) {
      if (suspected) continue;
      if (layout.networks[node] == suspect.node) inside.push_back(node);
      if (layout.networks[node] == suspect.other) outside.push_back(node);
    } else if (of_it(suspect)) {
      inside.push_back(node);
    } else if (!suspected) {
      outside.push_back(node);
    }
  }
  if (inside.empty()) return ways;
  // Each suspect begins at another place of the list: suspects with the same two witnesses would measure one after another. The first
  // suspect begins in the middle, where others are than the nodes that most nodes met first.
  const auto number = static_cast<size_t>(std::ranges::find(suspects, suspect) - suspects.begin());
  if (!outside.empty()) {
    const size_t first = (outside.size() / 2 + kWitnesses * number) % outside.size();
    std::rotate(outside.begin(), outside.begin() + static_cast<std::ptrdiff_t>(first), outside.end());
  }
  std::stable_partition(outside.begin(), outside.end(),
                        [&](uint32_t node) { return !shared.contains(node); });
  for (size_t i = 0; i < kWitnesses && i < outside.size(); ++i) add(inside[i % inside.size()], outside[i]);
  return ways;
}

std::vector<Remeasurement> TakeRound(std::vector<Remeasurement>& todo) {
  std::set<uint32_t> busy;
  std::vector<Remeasurement> round;
  std::erase_if(todo, [&](const Remeasurement& one) {
    if (busy.contains(one.way.from) || busy.contains(one.way.to)) return false;
    busy.insert({one.way.from, one.way.to});
    round.push_back(one);
    return true;
  });
  return round;
}

std::optional<Suspect> Confirmed(Suspect suspect, const std::vector<Measured>& again,
                                 const Expected& expected) {
  if (again.empty()) return std::nullopt;
  if (AllShow(suspect.trouble, again, expected)) return suspect;
  for (const Trouble worse : {Trouble::kUnreachable, Trouble::kBlocked, Trouble::kMtu, Trouble::kNoRdma}) {
    if (worse >= suspect.trouble) break;
    if (!AllShow(worse, again, expected)) continue;
    suspect.trouble = worse;
    suspect.bad = suspect.all = static_cast<uint32_t>(again.size());
    suspect.is = 0;
    suspect.why = again.front().error;
    return suspect;
  }
  return std::nullopt;
}

}  // namespace muster::preflight
