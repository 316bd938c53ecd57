// The nodes whose word counts. At most 15, so that a list fits a datagram.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace muster::lease {

using NodeIndex = uint16_t;
inline constexpr NodeIndex kNoNode = UINT16_MAX;
inline constexpr size_t kMaxWitnesses = 15;

class WitnessSet {
 public:
  WitnessSet() = default;
  WitnessSet(std::initializer_list<NodeIndex> nodes) : WitnessSet(std::span(nodes.begin(), nodes.size())) {}
  // Takes the first 15 that differ.
  explicit WitnessSet(std::span<const NodeIndex> nodes) {
    for (const NodeIndex node : nodes) Add(node);
  }
  // The first `nodes` of a gang with so many, at most 15.
  static WitnessSet FirstOf(size_t nodes) {
    WitnessSet set;
    for (size_t node = 0; node < nodes && node < kMaxWitnesses; ++node) set.Add(static_cast<NodeIndex>(node));
    return set;
  }

  // Of numbers of any type.
  template <typename Range>
  static WitnessSet Of(const Range& nodes) {
    WitnessSet set;
    for (const auto node : nodes) set.Add(static_cast<NodeIndex>(node));
    return set;
  }

  // False when full.
  bool Add(NodeIndex node) {
    if (Contains(node)) return true;
    if (count_ == kMaxWitnesses || node == kNoNode) return false;
    nodes_[count_++] = node;
    return true;
  }
  [[nodiscard]] bool Contains(NodeIndex node) const { return Position(node) < count_; }
  // size() when it is not in.
  [[nodiscard]] size_t Position(NodeIndex node) const {
    size_t i = 0;
    while (i < count_ && nodes_[i] != node) ++i;
    return i;
  }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] NodeIndex operator[](size_t i) const { return nodes_[i]; }
  [[nodiscard]] const NodeIndex* begin() const { return nodes_.data(); }
  [[nodiscard]] const NodeIndex* end() const { return nodes_.data() + count_; }

  // A strict majority; two of them share a node.
  [[nodiscard]] size_t Majority() const { return count_ / 2 + 1; }
  // So many that the rest is no majority.
  [[nodiscard]] size_t Blocking() const { return count_ - Majority() + 1; }

  friend bool operator==(const WitnessSet& a, const WitnessSet& b) {
    if (a.count_ != b.count_) return false;
    for (size_t i = 0; i < a.count_; ++i) {
      if (a.nodes_[i] != b.nodes_[i]) return false;
    }
    return true;
  }

 private:
  std::array<NodeIndex, kMaxWitnesses> nodes_{};
  size_t count_ = 0;
};

}  // namespace muster::lease
