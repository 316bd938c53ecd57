#include "daemon/partner/ring.h"

#include <algorithm>

namespace muster {
namespace {

// The places of those that save, and where one of them is among them (their number: it is not).
std::vector<size_t> SavingPlaces(const Roster& roster, size_t place, size_t* index) {
  std::vector<size_t> places;
  *index = roster.nodes.size();
  for (size_t other = 0; other < roster.nodes.size(); ++other) {
    if (!roster.nodes[other].saves) continue;
    if (other == place) *index = places.size();
    places.push_back(other);
  }
  if (*index == roster.nodes.size()) *index = places.size();
  return places;
}

// With one node that saves.
std::optional<size_t> PartnerOfOne(const Roster& roster, size_t place) {
  if (roster.nodes.size() == 1) return std::nullopt;
  return place == 0 ? 1 : 0;
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

std::optional<size_t> PartnerOf(const Roster& roster, size_t place) {
  size_t index = 0;
  const std::vector<size_t> places = SavingPlaces(roster, place, &index);
  if (index == places.size()) return std::nullopt;
  if (places.size() == 1) return PartnerOfOne(roster, place);
  return places[(index + places.size() / 2) % places.size()];
}

std::vector<uint32_t> RanksKeptBy(const Roster& roster, size_t place) {
  size_t index = 0;
  const std::vector<size_t> places = SavingPlaces(roster, place, &index);
  if (places.size() == 1 && PartnerOfOne(roster, places.front()) == place)
    return roster.nodes[places.front()].ranks;
  if (places.size() < 2 || index == places.size()) return {};
  const size_t kept = (index + places.size() - places.size() / 2) % places.size();
  return roster.nodes[places[kept]].ranks;
}

}  // namespace muster
