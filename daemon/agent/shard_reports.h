// What this node has said of its members' shards and the coordinator has not decided yet: one that comes back, or comes
// after another, hears it again. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "daemon/proto/muster.pb.h"

namespace muster {

class ShardReports {
 public:
  // Of a rank: the library remembers no more saves than that, so its member asks about no more.
  static constexpr ptrdiff_t kMostOfRank = 64;

  // In place of what was said of the same rank's step before.
  void Add(const v1::ShardWritten& report) { reports_[{report.shard().rank(), report.step()}] = report; }
  // Of a member's saves so many are not decided.
  [[nodiscard]] ptrdiff_t Undecided(uint32_t rank) const {
    return std::distance(reports_.lower_bound({rank, 0}),
                         reports_.upper_bound({rank, std::numeric_limits<uint64_t>::max()}));
  }
  // Whether there is room for a report that nobody but the member asks for.
  [[nodiscard]] bool MayAdd(uint32_t rank, uint64_t step) const {
    return !reports_.contains({rank, step}) && Undecided(rank) < kMostOfRank;
  }
  // The save of this step, whether it was committed or has failed. Another generation's of the same step is another save.
  void Decided(uint64_t generation, uint64_t step) {
    std::erase_if(reports_, [&](const auto& item) {
      return item.first.second == step && item.second.generation() == generation;
    });
  }
  void Clear() { reports_.clear(); }
  [[nodiscard]] const std::map<std::pair<uint32_t, uint64_t>, v1::ShardWritten>& all() const {
    return reports_;
  }

 private:
  std::map<std::pair<uint32_t, uint64_t>, v1::ShardWritten> reports_;  // by rank, step
};

}  // namespace muster
