// Which nodes make up the next generation: those of the one before, a spare for each that cannot, fewer if the
// gang may shrink, more if it has shrunk and may grow. Who stays keeps their place in the order of ranks.
#include <fmt/format.h>

#include <algorithm>

#include "base/planted.h"
#include "daemon/gang/gang.h"

namespace muster::gang {
namespace {

// Those that have the ranks before and after slots[at]'s, in a ring of those that stay; itself when none does.
template <typename Stays>
std::vector<uint32_t> Beside(std::vector<uint32_t> slots, size_t at, const Stays& stays) {
  const uint32_t node = slots[at];
  std::rotate(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(at), slots.end());
  const auto after = std::find_if(slots.begin(), slots.end(), stays);
  if (after == slots.end()) return {node};
  return {*std::find_if(slots.rbegin(), slots.rend(), stays), *after};
}

}  // namespace

uint32_t Gang::RoleIndex(uint32_t node) const {
  return node < settings_.node_roles.size() ? settings_.node_roles[node] : 0;
}

bool Gang::Usable(uint32_t node, Free free) const {
  const Node& n = nodes_[node];
  return n.present && !n.lost && !n.absent && !n.broken && n.excluded.empty() && !n.tasks.empty() &&
         (n.stopped || free == Free::kWhenExited || (n.exiting > 0 && MUSTER_PLANTED(exiting_used)) ||
          (free == Free::kWhenStopped && (IsActive(node) || MUSTER_PLANTED(exiting_counted))));
}

uint32_t Gang::FullSize(uint32_t role) const {
  uint32_t count = 0;
  for (uint32_t node = 0; node < nodes_.size(); ++node) count += RoleIndex(node) == role ? 1 : 0;
  return count > settings_.roles[role].spares ? count - settings_.roles[role].spares : count;
}

uint32_t Gang::LeastSize(uint32_t role) const {
  const uint32_t least = settings_.roles[role].min_nodes;
  return least > 0 ? std::min(least, FullSize(role)) : FullSize(role);
}

Gang::Placement Gang::Place(Free free, std::optional<uint32_t> without) const {
  Placement placement;
  for (uint32_t role = 0; role < settings_.roles.size(); ++role) {
    PlaceRole(role, free, without, &placement);
  }
  return placement;
}

std::string Gang::WhyUnusable(uint32_t node) const {
  const Node& n = nodes_[node];
  const std::string name = n.name.empty() ? fmt::format("node {} of the step", node) : n.name;
  if (n.lost) return name + " is lost";
  if (!n.excluded.empty()) return fmt::format("{}: {}", name, n.excluded);
  if (n.broken) return name + " has lost a task's supervisor";
  if (!n.draining.empty()) return fmt::format("{} is to be drained: {}", name, n.draining);
  return n.present ? name + " is not free" : name + " is not connected";
}

void Gang::PlaceRole(uint32_t role, Free when, std::optional<uint32_t> without, Placement* out) const {
  const auto usable = [&](uint32_t node) {
    if (without && (node == *without || !nodes_[node].draining.empty())) return false;
    return RoleIndex(node) == role && Usable(node, when);
  };
  std::vector<uint32_t> slots;
  for (const uint32_t node : active_) {
    if (RoleIndex(node) == role) slots.push_back(node);
  }
  const bool first = slots.empty();
  std::vector<uint32_t> free;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    if (usable(node) && std::find(slots.begin(), slots.end(), node) == slots.end()) free.push_back(node);
  }
  const uint32_t full = FullSize(role);
  if (first) {
    while (slots.size() < full && !free.empty()) {
      slots.push_back(free.front());
      free.erase(free.begin());
    }
    if (tree_) slots = tree_->Order(slots);
  }
  const auto change = [&](const std::string& text) {
    if (!out->changes.empty()) out->changes += ", ";
    out->changes += text;
  };
  std::string unusable;
  const auto leave_out = [&](uint32_t node) {
    if (unusable.size() < 400) unusable += (unusable.empty() ? "" : "; ") + WhyUnusable(node);
  };
  if (first) {
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (RoleIndex(node) == role && !usable(node)) leave_out(node);
    }
  }
  size_t count = 0;
  for (size_t at = 0; at < slots.size(); ++at) {
    const uint32_t node = slots[at];
    if (usable(node)) {
      out->active.push_back(node);
      ++count;
      continue;
    }
    const auto spare = SpareFor(node, free, tree_ ? Beside(slots, at, usable) : std::vector<uint32_t>());
    if (spare == free.end()) {
      change(fmt::format("without {}", nodes_[node].name));
      leave_out(node);
      continue;
    }
    change(fmt::format("{} takes the place of {}", nodes_[*spare].name, nodes_[node].name));
    out->active.push_back(*spare);
    ++count;
    slots[at] = *spare;
    free.erase(spare);
  }
  while (!first && settings_.grow && count < full && !free.empty()) {
    change(fmt::format("{} is added", nodes_[free.front()].name));
    out->active.push_back(free.front());
    ++count;
    free.erase(free.begin());
  }
  const uint32_t least = LeastSize(role);
  if (count >= least) return;
  const std::string of =
      settings_.roles.size() > 1 ? fmt::format(" of role {}", settings_.roles[role].name) : "";
  out->why_not = fmt::format("{} of the {} nodes{} that it needs are left, and no spare{}{}", count, least,
                             of, unusable.empty() ? "" : ": ", unusable);
}

// Of those that are free the one that takes the place of `node`: the nearest to all of `beside`, of several the first.
std::vector<uint32_t>::const_iterator Gang::SpareFor(uint32_t node, const std::vector<uint32_t>& free,
                                                     const std::vector<uint32_t>& beside) const {
  auto spare = free.end();
  uint32_t least = 0;
  for (auto candidate = free.begin(); candidate != free.end(); ++candidate) {
    // Ranks move as a whole node's, so only a node with as many tasks can take them.
    if (nodes_[node].task_count != 0 && nodes_[*candidate].task_count != nodes_[node].task_count) continue;
    uint32_t distance = 0;
    for (const uint32_t other : beside) distance += tree_->Distance(*candidate, other);
    if (spare != free.end() && distance >= least) continue;
    spare = candidate;
    least = distance;
  }
  return spare;
}

bool Gang::Trains(uint32_t node) const {
  const RoleKind kind = RoleOf(node).kind;
  return kind == RoleKind::kTracked || kind == RoleKind::kChief;
}

// By node, and on a node by local id; those that train first.
void Gang::AssignRanks() {
  for (Member& member : members_) member.rank.reset();
  uint32_t rank = 0;
  for (const bool trains : {true, false}) {
    for (const uint32_t node : active_) {
      if (Trains(node) != trains) continue;
      for (const uint32_t task : nodes_[node].tasks) members_[task].rank = rank++;
      // A coordinator that took over has not heard which tasks a dead node has, but how many the record says.
      if (nodes_[node].tasks.empty() && !MUSTER_PLANTED(dead_not_counted)) rank += nodes_[node].task_count;
    }
    if (trains) world_size_ = rank;
  }
  if (world_size_ == 0) world_size_ = rank;
}

}  // namespace muster::gang
