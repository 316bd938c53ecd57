#include "net/preflight/confirm.h"

#include <algorithm>

namespace muster::preflight {

using Scope = Suspect::Scope;

namespace {

constexpr size_t kWitnesses = 2;
// So many suspects measure for all networks with the same trouble.
constexpr size_t kDeputies = 3;

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

// The places of those that measure for the suspect at `place`: mostly its own. Those of many networks are spread over the list, so that
// they have other nodes.
std::vector<size_t> Deputies(const std::vector<Suspect>& suspects, size_t place) {
  if (suspects[place].scope != Scope::kNetwork) return {place};
  std::vector<size_t> alike;
  for (size_t i = 0; i < suspects.size(); ++i) {
    if (suspects[i].scope == Scope::kNetwork && suspects[i].trouble == suspects[place].trouble)
      alike.push_back(i);
  }
  if (alike.size() <= kDeputies) return {place};
  std::vector<size_t> deputies;
  for (size_t i = 0; i < kDeputies; ++i) deputies.push_back(alike[i * alike.size() / kDeputies]);
  return deputies;
}

bool IsOneOf(const std::vector<size_t>& places, size_t place) {
  return std::ranges::find(places, place) != places.end();
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
  const auto begin_at = [&](std::vector<uint32_t>& nodes, size_t first) {
    if (nodes.empty()) return;
    const auto at = static_cast<std::ptrdiff_t>((first + kWitnesses * number) % nodes.size());
    std::rotate(nodes.begin(), nodes.begin() + at, nodes.end());
  };
  begin_at(inside, 0);
  begin_at(outside, outside.size() / 2);
  std::stable_partition(outside.begin(), outside.end(),
                        [&](uint32_t node) { return !shared.contains(node); });
  for (size_t i = 0; i < kWitnesses && i < outside.size(); ++i) add(inside[i % inside.size()], outside[i]);
  return ways;
}

std::vector<Remeasurement> Remeasurements(const std::vector<Suspect>& suspects, const Layout& layout,
                                          const Able& able) {
  std::vector<size_t> places;
  std::vector<Suspect> measure;  // neighbours in it have other witnesses
  for (size_t i = 0; i < suspects.size(); ++i) {
    if (!IsOneOf(Deputies(suspects, i), i)) continue;
    places.push_back(i);
    measure.push_back(suspects[i]);
  }
  std::vector<Remeasurement> todo;
  for (size_t i = 0; i < measure.size(); ++i) {
    const auto& nodes = measure[i].trouble == Trouble::kNoRdma ? able.rdma : able.all;
    for (const Way& way : Witnesses(measure[i], layout, nodes, able.shared, measure))
      todo.push_back({places[i], way});
  }
  return todo;
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

std::optional<Suspect> Standing(const std::vector<Suspect>& suspects, size_t place,
                                const std::vector<std::vector<Measured>>& again, const Expected& expected) {
  auto deputies = Deputies(suspects, place);
  if (IsOneOf(deputies, place)) return Confirmed(suspects[place], again[place], expected);
  std::erase_if(deputies, [&](size_t deputy) { return again[deputy].empty(); });
  const bool all = std::ranges::all_of(deputies, [&](size_t deputy) {
    return Confirmed(suspects[deputy], again[deputy], expected).has_value();
  });
  return all && !deputies.empty() ? std::optional(suspects[place]) : std::nullopt;
}

}  // namespace muster::preflight
