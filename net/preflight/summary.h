// What the measurements of a test say as a whole. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "net/preflight/blame.h"

namespace muster::preflight {

// What a good link does here: what the best quarter of the measurements reached at least; of those that had the link for themselves, where
// there are such.
double UsualRate(const std::vector<Measured>& measured);

// `rate`: what a link carries, in Mbit/s; 0: nobody knows. A rate above it is expected of no link. TCP and RDMA have an
// expected rate each.
Expected ExpectedOf(const std::vector<Measured>& measured, int64_t rate, double lossy_above);

// A usual measurement, where links carry less than three quarters of what senders with `rate` of the settings send: then no link is slow
// beside the others, but all or most are. TCP's single connection is expected to carry 10 Gb/s at most. Nothing where no measurement had
// the link for itself.
std::optional<Measured> BelowRate(const std::vector<Measured>& measured, int64_t rate);

// Of the data's packets those over that direction of a node's link that had fewest; of nodes that have measured.
uint64_t FewestPackets(const std::vector<Measured>& measured);

// Half of the shortest round trip, in us. A pair has the shorter one of its two measurements.
struct Latency {
  double usual_us = 0;    // the median of the pairs; 0: nobody knows
  double longest_us = 0;  // the longest of them
  uint32_t one = 0;       // that pair
  uint32_t other = 0;
};
Latency LatencyOf(const std::vector<Measured>& measured);

// Nodes of which one direction of the link carried much other traffic in most of its measurements.
std::set<uint32_t> SharedLinks(const std::vector<Measured>& measured, size_t nodes, const Expected& expected);

}  // namespace muster::preflight
