// Who measures with whom. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::preflight {

// Two nodes, by their number; one < other.
struct Pair {
  uint32_t one = 0;
  uint32_t other = 0;

  bool operator==(const Pair&) const = default;
};
// Disjoint pairs, which measure at the same time: no link carries two of them.
using Round = std::vector<Pair>;

// Every pair of `nodes` nodes once, in nodes - 1 rounds; an odd number needs one more, and in each a node rests.
std::vector<Round> AllPairs(uint32_t nodes);

// So many of these rounds that each node has measured with about log2(nodes) others, and at least three where there are so many:
// enough to tell a node's link from a peer's.
std::vector<Round> QuickPairs(uint32_t nodes);

// Rounds to come behind `rounds`, in which each node that has met none of its own network meets one: what a node measures within its
// network tells a node's fault from a router's. `networks` has each node's. None where there is one network.
std::vector<Round> HomeRounds(const std::vector<uint32_t>& networks, const std::vector<Round>& rounds);

}  // namespace muster::preflight
