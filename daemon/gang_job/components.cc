#include "daemon/gang_job/components.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/hostlist.h"

namespace muster {
namespace {

constexpr uint32_t kMaxTasks = 1U << 24;

Error Malformed(std::string_view what) {
  return Error{Errc::kInvalid, fmt::format("the step's components are malformed: {}", what)};
}

// Takes what is before `mark` off the text; all of it when there is none.
std::string_view Cut(std::string_view* text, char mark) {
  const size_t at = text->find(mark);
  const std::string_view piece = text->substr(0, at);
  text->remove_prefix(at == std::string_view::npos ? text->size() : at + 1);
  return piece;
}

std::optional<uint32_t> Number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "2(x3),1" is 2 2 2 1.
std::optional<std::vector<uint32_t>> ReadTasks(std::string_view text, size_t nodes) {
  std::vector<uint32_t> tasks;
  while (!text.empty()) {
    std::string_view item = Cut(&text, ',');
    uint32_t times = 1;
    if (const size_t bracket = item.find("(x"); bracket != std::string_view::npos) {
      if (!item.ends_with(')')) return std::nullopt;
      const auto repeat = Number(item.substr(bracket + 2, item.size() - bracket - 3));
      if (!repeat) return std::nullopt;
      times = *repeat;
      item = item.substr(0, bracket);
    }
    const auto count = Number(item);
    if (!count || *count == 0 || *count > kMaxTasks || times > nodes - tasks.size()) return std::nullopt;
    tasks.insert(tasks.end(), times, *count);
  }
  if (tasks.size() != nodes) return std::nullopt;
  return tasks;
}

bool MayEndFirst(wire::RoleKind kind) {
  return kind == wire::RoleKind::kTracked || kind == wire::RoleKind::kUntracked ||
         kind == wire::RoleKind::kSidecar;
}

// Of the nodes that do not wait as spares.
uint32_t MembersOf(const Components& components, const Component& component) {
  uint32_t members = 0;
  for (size_t i = 0; i + component.options.spares < component.nodes.size(); ++i)
    members += components.node_tasks[component.nodes[i]];
  return members;
}

}  // namespace

uint32_t Components::TaskCount() const {
  return std::accumulate(node_tasks.begin(), node_tasks.end(), 0U);
}

bool Components::EndWith(uint32_t node, const std::vector<uint32_t>& lost) const {
  if (list.empty()) return false;
  for (uint32_t number = 0; number <= of_node[node]; ++number) {
    const auto gone =
        std::count_if(lost.begin(), lost.end(), [&](uint32_t n) { return of_node[n] == number; });
    if (static_cast<int64_t>(list[number].job_nodes) - gone <= 1) return true;
  }
  return false;
}

uint32_t GangJobOf(std::string_view text) {
  constexpr std::string_view kJob = "job=";
  if (!text.starts_with(kJob)) return 0;
  text.remove_prefix(kJob.size());
  return Number(Cut(&text, ' ')).value_or(0);
}

Result<Components> ParseComponents(std::string_view text, const std::vector<std::string>& hosts) {
  Components components;
  components.job_id = GangJobOf(text);
  if (components.job_id == 0) return Malformed("there is no job");
  std::string_view first = Cut(&text, '\n');
  Cut(&first, ' ');
  if (Cut(&first, '=') != "tasks") return Malformed("there are no tasks");
  auto tasks = ReadTasks(first, hosts.size());
  if (!tasks) return Malformed(fmt::format("their tasks do not fit {} nodes", hosts.size()));
  components.node_tasks = *std::move(tasks);
  uint64_t total = 0;
  for (const uint32_t count : components.node_tasks) {
    components.first_task.push_back(static_cast<uint32_t>(total));
    total += count;
    if (total > kMaxTasks) return Malformed(fmt::format("more than {} tasks", kMaxTasks));
  }
  std::unordered_map<std::string_view, uint32_t> index;
  for (uint32_t i = 0; i < hosts.size(); ++i) index.emplace(hosts[i], i);

  constexpr uint32_t kNone = UINT32_MAX;
  size_t named = 0;
  components.of_node.assign(hosts.size(), kNone);
  while (!text.empty()) {
    if (components.list.size() == kMaxComponents)
      return Malformed(fmt::format("there are more than {}", kMaxComponents));
    std::string_view line = Cut(&text, '\n');
    const auto job = Number(Cut(&line, ' '));
    const auto nodes = ExpandHostlist(Cut(&line, ' '));
    if (!job || *job == 0) return Malformed("one has no job");
    if (!nodes) return nodes.error();
    named += nodes->size();
    if (named > kMaxHosts) return Malformed(fmt::format("they name more than {} nodes", kMaxHosts));
    Component component{.job_id = *job, .options_text = std::string(line)};
    component.job_nodes = static_cast<uint32_t>(nodes->size());
    const auto number = static_cast<uint32_t>(components.list.size());
    // A job's nodes need not all be in the step.
    for (const std::string& node : *nodes) {
      const auto found = index.find(node);
      if (found == index.end()) continue;
      uint32_t& owner = components.of_node[found->second];
      if (owner != kNone) return Malformed(fmt::format("{} is in two of them", node));
      owner = number;
      component.nodes.push_back(found->second);
    }
    if (component.nodes.empty()) return Malformed(fmt::format("none of the step's nodes is job {}'s", *job));
    std::sort(component.nodes.begin(), component.nodes.end());
    std::array<char, wire::kMaxOptionError> reason{};
    if (!wire::ParseGangOptions(line.data(), line.size(), &component.options, reason.data(), reason.size()) ||
        !wire::CheckNodes(component.options, static_cast<uint32_t>(component.nodes.size()), reason.data(),
                          reason.size())) {
      return Error{Errc::kInvalid, fmt::format("component {}: {}", number, reason.data())};
    }
    components.list.push_back(std::move(component));
  }
  for (uint32_t i = 0; i < hosts.size(); ++i) {
    if (components.of_node[i] == kNone) return Malformed(fmt::format("{} is in none of them", hosts[i]));
  }
  return components;
}

Status CheckRoles(const Components& components) {
  const std::vector<Component>& list = components.list;
  const auto refuse = [](std::string text) { return Error{Errc::kInvalid, "--gang: " + std::move(text)}; };
  const auto find = [&](std::string_view role) {
    return std::find_if(list.begin(), list.end(), [&](const Component& c) { return c.options.role == role; });
  };
  uint32_t chiefs = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const wire::GangOptions& options = list[i].options;
    const auto same = find(options.role);
    if (same->options.kind != options.kind) {
      return refuse(fmt::format("role={} is kind={} in component {} and kind={} in component {}",
                                options.role, wire::RoleKindName(same->options.kind), same - list.begin(),
                                wire::RoleKindName(options.kind), i));
    }
    if (options.kind == wire::RoleKind::kChief) chiefs += MembersOf(components, list[i]);
    if (options.after[0] == '\0') continue;
    const auto before = find(options.after);
    if (before == list.end())
      return refuse(fmt::format("after={}: no component of the step has that role", options.after));
    if (options.after_done && !MayEndFirst(before->options.kind)) {
      return refuse(fmt::format("after={}:done: kind={} ends with its gang, so role {} would never start",
                                options.after, wire::RoleKindName(before->options.kind), options.role));
    }
    // Who waits for whom must come to an end.
    std::string way = options.role;
    auto next = list.begin() + static_cast<std::ptrdiff_t>(i);
    for (size_t steps = 0; next != list.end() && next->options.after[0] != '\0'; ++steps) {
      way += fmt::format(" after {}", next->options.after);
      if (steps == list.size()) return refuse(fmt::format("{}: none of them would start", way));
      next = find(next->options.after);
    }
  }
  if (chiefs > 1) {
    return refuse(fmt::format(
        "{} tasks are chief, but one decides the gang's end: give it a component of one task", chiefs));
  }
  return {};
}

Result<wire::GangOptions> MergeOptions(const std::vector<Component>& components) {
  const wire::GangOptions defaults;
  wire::GangOptions merged = components.front().options;
  for (const Component& component : components) {
    for (const wire::GangKey& key : wire::kGangKeys) {
      // What a component does not say is another's to say.
      if (key.same == nullptr || key.same(component.options, defaults) || key.same(component.options, merged))
        continue;
      if (!key.same(merged, defaults)) {
        return Error{Errc::kInvalid,
                     fmt::format("--gang: {}= is for the whole gang, and role {} says something else than "
                                 "the roles before it",
                                 key.name, component.options.role)};
      }
      key.copy(component.options, &merged);
    }
  }
  return merged;
}

}  // namespace muster
