// Where a gang's nodes are in a tree of switches, and the order in which a ring over them crosses as few as can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::gang {

inline constexpr size_t kMaxSwitchLevels = 16;
inline constexpr size_t kMaxSwitchName = 255;  // bytes

// Immutable. Nodes are counted as in the step.
class SwitchTree {
 public:
  // `switches`: by node, those above it, from the root's to the leaf's; `names`: of the nodes, for messages. kInvalid with the
  // reason when they make up no tree that has all the nodes at one depth.
  static Result<SwitchTree> Of(const std::vector<std::vector<std::string>>& switches,
                               const std::vector<std::string>& names);

  // Levels up to the switch that both are below: 0 below one leaf switch.
  [[nodiscard]] uint32_t Distance(uint32_t a, uint32_t b) const;
  // Of a ring over these nodes: the distances of all that are next to each other, the last and the first too.
  [[nodiscard]] uint64_t Crossings(const std::vector<uint32_t>& ring) const;
  // The least that any order of these nodes can have: a ring goes into each switch that has some of them, and not all, once
  // and comes out of it once.
  [[nodiscard]] uint64_t LeastCrossings(const std::vector<uint32_t>& nodes) const;
  // An order that has the least: as they come when that has it, else depth first, switches and nodes as they come first.
  [[nodiscard]] std::vector<uint32_t> Order(const std::vector<uint32_t>& nodes) const;

 private:
  SwitchTree() = default;
  [[nodiscard]] uint32_t SwitchOf(uint32_t node, size_t level) const {
    return switch_of_[node * levels_ + level];
  }

  size_t levels_ = 0;
  uint32_t switch_count_ = 0;
  std::vector<uint32_t> switch_of_;  // by node and level, from the root's
};

}  // namespace muster::gang
