#include "daemon/coordinator/roles.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace muster {
namespace {

gang::RoleKind KindOf(wire::RoleKind kind) {
  switch (kind) {
    case wire::RoleKind::kTracked:
      return gang::RoleKind::kTracked;
    case wire::RoleKind::kChief:
      return gang::RoleKind::kChief;
    case wire::RoleKind::kService:
      return gang::RoleKind::kService;
    case wire::RoleKind::kUntracked:
      return gang::RoleKind::kUntracked;
    case wire::RoleKind::kSidecar:
      return gang::RoleKind::kSidecar;
  }
  return gang::RoleKind::kTracked;
}

int Order(gang::RoleKind kind) {
  constexpr gang::RoleKind kOrder[] = {gang::RoleKind::kChief, gang::RoleKind::kTracked,
                                       gang::RoleKind::kService, gang::RoleKind::kUntracked,
                                       gang::RoleKind::kSidecar};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), kind) - std::begin(kOrder));
}

gang::Role RoleOf(const wire::GangOptions& options) {
  gang::Role role;
  role.name = options.role;
  role.kind = KindOf(options.kind);
  role.spares = options.spares;
  role.min_nodes = options.min_nodes;
  role.after_done = options.after_done;
  return role;
}

}  // namespace

void SetRoles(const GangJob& job, gang::Settings* settings) {
  settings->roles.clear();
  settings->node_roles.clear();
  const std::vector<Component>& list = job.components.list;
  if (list.empty()) settings->roles.push_back(RoleOf(job.options));
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return Order(KindOf(list[a].options.kind)) < Order(KindOf(list[b].options.kind));
  });
  if (!list.empty()) settings->node_roles.resize(job.hosts.size());
  for (const size_t index : order) {
    const auto number = static_cast<uint32_t>(settings->roles.size());
    settings->roles.push_back(RoleOf(list[index].options));
    for (const uint32_t node : list[index].nodes) settings->node_roles[node] = number;
  }
  // The state machine looks at all roles of that name.
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string_view after = list[order[i]].options.after;
    const auto found = std::find_if(settings->roles.begin(), settings->roles.end(),
                                    [&](const gang::Role& role) { return role.name == after; });
    if (found != settings->roles.end())
      settings->roles[i].after = static_cast<uint32_t>(found - settings->roles.begin());
  }
  // Nobody is chief among equals, nor a sidecar of nobody: what a kind means takes another role.
  const bool one = std::all_of(settings->roles.begin(), settings->roles.end(), [&](const gang::Role& role) {
    return role.name == settings->roles.front().name;
  });
  if (!one) return;
  for (gang::Role& role : settings->roles) role.kind = gang::RoleKind::kTracked;
}

}  // namespace muster
