#include "daemon/partner/parity_group.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace muster {

std::string ParityGroup::NamesOfOthers() const {
  std::string names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i != self) names += (names.empty() ? "" : ", ") + nodes[i].name;
  }
  return names;
}

size_t ParityGroup::SlotsOfOthers() const {
  size_t slots = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i != self) slots = std::max(slots, nodes[i].ranks.size());
  }
  return slots;
}

std::optional<ParityGroup> GroupOf(const Roster& roster, size_t place, size_t size) {
  const std::vector<size_t> places = SavingPlaces(roster);
  const auto found = std::find(places.begin(), places.end(), place);
  if (size < kLeastGroup || places.size() < kLeastGroup || found == places.end()) return std::nullopt;
  const size_t groups = std::max<size_t>(places.size() / size, 1);
  ParityGroup group;
  for (auto index = static_cast<size_t>(found - places.begin()) % groups; index < places.size();
       index += groups) {
    if (places[index] == place) group.self = group.nodes.size();
    const Roster::Node& node = roster.nodes[places[index]];
    group.nodes.push_back({node.name, node.ranks});
  }
  return group;
}

ChunkSpan PartOf(size_t nodes, size_t owner, size_t keeper, uint64_t chunks) {
  const uint64_t each = (chunks + nodes - 2) / (nodes - 1);
  const uint64_t part = (keeper + nodes - owner - 1) % nodes;
  const uint64_t first = std::min(part * each, chunks);
  return {first, std::min(each, chunks - first)};
}

void XorInto(std::span<std::byte> into, std::span<const std::byte> from) {
  using Word = std::array<uint64_t, 8>;
  const size_t bytes = std::min(into.size(), from.size());
  size_t at = 0;
  for (; at + sizeof(Word) <= bytes; at += sizeof(Word)) {
    Word a;
    Word b;
    std::memcpy(&a, into.data() + at, sizeof a);
    std::memcpy(&b, from.data() + at, sizeof b);
    for (size_t i = 0; i < a.size(); ++i) a[i] ^= b[i];
    std::memcpy(into.data() + at, &a, sizeof a);
  }
  for (; at < bytes; ++at) into[at] ^= from[at];
}

}  // namespace muster
