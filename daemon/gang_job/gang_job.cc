#include "daemon/gang_job/gang_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/hostlist.h"

namespace muster {
namespace {

std::string WithSubmission(const std::string& text, uint64_t submission) {
  return submission == 0 ? text : text + "-" + SubmissionText(submission);
}

}  // namespace

std::string GangJob::Id() const {
  return restart_count == 0 ? fmt::format("{}.{}", job_id, step_id)
                            : fmt::format("{}.{}-r{}", job_id, step_id, restart_count);
}

std::string GangJob::Unique() const {
  return WithSubmission(Id(), submission);
}

std::string GangJob::Key() const {
  if (options.name[0] != '\0') return fmt::format("name-{}", options.name);
  return WithSubmission(fmt::format("job-{}.{}", job_id, step_id), submission);
}

std::string GangJob::Space() const {
  return SpaceOf(uid);
}

const wire::GangOptions& GangJob::OptionsOf(uint32_t node) const {
  return components.list.empty() ? options : components.list[components.of_node[node]].options;
}

std::optional<uint32_t> GangJob::NodeOf(const std::string& host) const {
  const auto found = std::find(hosts.begin(), hosts.end(), host);
  if (found == hosts.end()) return std::nullopt;
  return static_cast<uint32_t>(found - hosts.begin());
}

uint32_t GangJob::JobOf(uint32_t node) const {
  return components.list.empty() ? job_id : components.list[components.of_node[node]].job_id;
}

std::vector<uint32_t> GangJob::CandidateNodes() const {
  std::vector<uint32_t> order;
  for (const Component& component : components.list)
    order.insert(order.end(), component.nodes.begin(), component.nodes.end());
  if (components.list.empty()) {
    for (uint32_t node = 0; node < hosts.size(); ++node) order.push_back(node);
  }
  if (order.empty()) return {0};
  std::rotate(order.begin(), order.begin() + 1, order.end());
  return order;
}

Status GangJob::CompleteComponents() {
  auto parsed = ParseComponents(components_text, hosts);
  if (!parsed) return parsed.error();
  if (parsed->job_id != job_id) return Error{Errc::kInvalid, "the step's components are another job's"};
  if (Status good = CheckRoles(*parsed); !good) return good;
  auto merged = MergeOptions(parsed->list);
  if (!merged) return merged.error();
  components = *std::move(parsed);
  options = *merged;
  options_text = components.list.front().options_text;
  task_count = components.TaskCount();
  return {};
}

Status GangJob::Complete() {
  auto expanded = ExpandHostlist(node_list);
  if (!expanded) return expanded.error();
  hosts = *std::move(expanded);
  if (!components_text.empty()) return CompleteComponents();
  std::array<char, wire::kMaxOptionError> reason{};
  if (!wire::ParseGangOptions(options_text.data(), options_text.size(), &options, reason.data(),
                              reason.size()) ||
      !wire::CheckNodes(options, static_cast<uint32_t>(hosts.size()), reason.data(), reason.size())) {
    return Error{Errc::kInvalid, reason.data()};
  }
  if (options.after[0] != '\0') {
    return Error{Errc::kInvalid, fmt::format("--gang: after={}: this step has only the role {}",
                                             options.after, options.role)};
  }
  if (task_count == 0 || task_count > (1U << 24) || task_count < hosts.size()) {
    return Error{Errc::kInvalid, fmt::format("{} tasks on {} nodes is not a step", task_count, hosts.size())};
  }
  return {};
}

std::string SpaceOf(uint32_t uid) {
  return fmt::format("u{}", uid);
}

std::string SubmissionText(uint64_t submission) {
  return submission == 0 ? "" : fmt::format("{:016x}", submission);
}

uint64_t SubmissionOf(std::string_view text) {
  uint64_t submission = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, submission, 16);
  return error == std::errc() && at == end ? submission : 0;
}

}  // namespace muster
