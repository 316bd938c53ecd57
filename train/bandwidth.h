// How fast a gang's GPUs exchange by NCCL: all of them, those of each node, and one of each node with one another.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/collectives/collectives.h"

namespace muster::train {

struct BandwidthOptions {
  // Of a member of the whole gang: its place, its device, the libraries, how members meet.
  GroupOptions gang;
  int node = 0;      // GROUP_RANK
  int in_node = 0;   // LOCAL_RANK
  std::string host;  // this node's name
  // The largest all-reduce, in bytes; the smallest is 1 MiB, or this.
  std::size_t largest = std::size_t{1} << 30U;
};

// Members that reduce together, while others of the same kind do so among themselves.
struct GroupBandwidth {
  std::string name;  // the node, or "GPU 3"; empty: all
  int members = 0;
  // For each size: the median time of an all-reduce, of the member that took longest.
  std::vector<double> microseconds;
};

struct KindBandwidth {
  std::string kind;     // "all", "node", "across"
  std::string skipped;  // why it was not measured; empty: it was
  std::vector<GroupBandwidth> groups;
};

struct Bandwidth {
  std::vector<std::size_t> bytes;  // of each all-reduce
  int nodes = 0;
  int gpus = 0;
  std::vector<KindBandwidth> kinds;
};

// In GB/s, what each GPU's link carries in a direction for an all-reduce in a ring: comparable whatever the number of members.
[[nodiscard]] double BusBandwidth(std::size_t bytes, int members, double microseconds);

// Measures with all others, which call it too; the result is the same on all. Takes the device's memory for the largest
// all-reduce. An error names who is missing, or what NCCL said.
[[nodiscard]] Result<Bandwidth> MeasureBandwidth(const BandwidthOptions& options);

// For people, and as JSON. `link`: what a link carries, in GB/s; 0: unknown.
[[nodiscard]] std::string BandwidthText(const Bandwidth& found, double link);
[[nodiscard]] std::string BandwidthJson(const Bandwidth& found, double link);

}  // namespace muster::train
