#include "daemon/partner/ring.h"

#include <algorithm>

namespace muster {
namespace {

// Their number: it is none of them.
size_t IndexOf(const std::vector<size_t>& places, size_t place) {
  return static_cast<size_t>(std::find(places.begin(), places.end(), place) - places.begin());
}

// With one node that saves.
std::optional<size_t> PartnerOfOne(const Roster& roster, size_t place) {
  std::optional<size_t> any;
  for (size_t other = 0; other < roster.nodes.size(); ++other) {
    if (other == place) continue;
    if (roster.nodes[other].domain != roster.nodes[place].domain) return other;
    if (!any) any = other;
  }
  return any;
}

}  // namespace

uint32_t Roster::Savers() const {
  uint32_t count = 0;
  for (const Node& node : nodes) count += node.saves ? static_cast<uint32_t>(node.ranks.size()) : 0;
  return count;
}

std::optional<size_t> Roster::PlaceOf(uint32_t rank) const {
  for (size_t place = 0; place < nodes.size(); ++place) {
    const auto& ranks = nodes[place].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return place;
  }
  return std::nullopt;
}

std::vector<size_t> SavingPlaces(const Roster& roster) {
  std::vector<size_t> places;
  for (size_t place = 0; place < roster.nodes.size(); ++place) {
    if (roster.nodes[place].saves) places.push_back(place);
  }
  std::stable_sort(places.begin(), places.end(),
                   [&](size_t a, size_t b) { return roster.nodes[a].domain < roster.nodes[b].domain; });
  return places;
}

std::optional<size_t> PartnerOf(const Roster& roster, size_t place) {
  const std::vector<size_t> places = SavingPlaces(roster);
  const size_t index = IndexOf(places, place);
  if (index == places.size()) return std::nullopt;
  if (places.size() == 1) return PartnerOfOne(roster, place);
  return places[(index + places.size() / 2) % places.size()];
}

std::vector<uint32_t> RanksKeptBy(const Roster& roster, size_t place) {
  const std::vector<size_t> places = SavingPlaces(roster);
  const size_t index = IndexOf(places, place);
  if (places.size() == 1 && PartnerOfOne(roster, places.front()) == place)
    return roster.nodes[places.front()].ranks;
  if (places.size() < 2 || index == places.size()) return {};
  const size_t kept = (index + places.size() - places.size() / 2) % places.size();
  return roster.nodes[places[kept]].ranks;
}

}  // namespace muster
