#include "daemon/gang/switch_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace muster::gang {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kShown = 40;  // bytes of a switch's name in a message

struct Switch {
  uint32_t number = 0;
  size_t level = 0;
  uint32_t above = kNone;
};

Error NoTree(std::string why) {
  return {Errc::kInvalid, std::move(why)};
}

}  // namespace

Result<SwitchTree> SwitchTree::Of(const std::vector<std::vector<std::string>>& switches,
                                  const std::vector<std::string>& names) {
  const auto name = [&](size_t node) {
    return node < names.size() ? names[node] : fmt::format("node {} of the step", node);
  };
  if (std::all_of(switches.begin(), switches.end(), [](const auto& above) { return above.empty(); }))
    return NoTree("Slurm's topology has none of its nodes");
  SwitchTree tree;
  tree.levels_ = switches[0].size();
  std::unordered_map<std::string_view, Switch> known;
  for (size_t node = 0; node < switches.size(); ++node) {
    const std::vector<std::string>& above = switches[node];
    if (above.empty()) return NoTree(fmt::format("Slurm's topology does not have {}", name(node)));
    if (above.size() > kMaxSwitchLevels)
      return NoTree(fmt::format("{} is below more than {} levels of switches", name(node), kMaxSwitchLevels));
    if (above.size() != tree.levels_)
      return NoTree(fmt::format("the levels of switches above {} are {}, and above {} they are {}", name(0),
                                tree.levels_, name(node), above.size()));
    uint32_t number = kNone;
    for (size_t level = 0; level < above.size(); ++level) {
      const std::string_view one = above[level];
      if (one.empty()) return NoTree(fmt::format("a switch above {} has no name", name(node)));
      if (one.size() > kMaxSwitchName)
        return NoTree(
            fmt::format("the name of a switch above {} has more than {} bytes", name(node), kMaxSwitchName));
      const auto [found, added] = known.try_emplace(one, Switch{tree.switch_count_, level, number});
      if (!added && (found->second.level != level || found->second.above != number))
        return NoTree(fmt::format("switch {} is at two places", one.substr(0, kShown)));
      tree.switch_count_ += added ? 1 : 0;
      number = found->second.number;
      tree.switch_of_.push_back(number);
    }
  }
  return tree;
}

uint32_t SwitchTree::Distance(uint32_t a, uint32_t b) const {
  size_t level = levels_;
  while (level > 0 && SwitchOf(a, level - 1) != SwitchOf(b, level - 1)) --level;
  return static_cast<uint32_t>(levels_ - level);
}

uint64_t SwitchTree::Crossings(const std::vector<uint32_t>& ring) const {
  uint64_t crossings = 0;
  for (size_t i = 0; i < ring.size(); ++i) crossings += Distance(ring[i], ring[(i + 1) % ring.size()]);
  return crossings;
}

uint64_t SwitchTree::LeastCrossings(const std::vector<uint32_t>& nodes) const {
  std::vector<size_t> below(switch_count_);
  for (const uint32_t node : nodes) {
    for (size_t level = 0; level < levels_; ++level) ++below[SwitchOf(node, level)];
  }
  return static_cast<uint64_t>(std::count_if(
      below.begin(), below.end(), [&](size_t count) { return count > 0 && count < nodes.size(); }));
}

std::vector<uint32_t> SwitchTree::Order(const std::vector<uint32_t>& nodes) const {
  if (Crossings(nodes) == LeastCrossings(nodes)) return nodes;
  std::vector<size_t> first(switch_count_, nodes.size());  // below it, of the nodes as they come
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t level = 0; level < levels_; ++level) {
      size_t& position = first[SwitchOf(nodes[i], level)];
      position = std::min(position, i);
    }
  }
  std::vector<uint32_t> order = nodes;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    for (size_t level = 0; level < levels_; ++level) {
      const size_t of_a = first[SwitchOf(a, level)];
      const size_t of_b = first[SwitchOf(b, level)];
      if (of_a != of_b) return of_a < of_b;
    }
    return false;
  });
  return order;
}

}  // namespace muster::gang
