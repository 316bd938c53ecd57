#include "daemon/base/gang_job.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "daemon/base/hostlist.h"

namespace muster {

std::string GangJob::Id() const {
  return restart_count == 0 ? fmt::format("{}.{}", job_id, step_id)
                            : fmt::format("{}.{}-r{}", job_id, step_id, restart_count);
}

std::string GangJob::Key() const {
  return options.name[0] != '\0' ? fmt::format("name-{}", options.name)
                                 : fmt::format("job-{}.{}", job_id, step_id);
}

std::string GangJob::Space() const {
  return SpaceOf(uid);
}

std::vector<std::string> GangJob::Candidates() const {
  if (hosts.size() < 2) return hosts;
  std::vector<std::string> order(hosts.begin() + 1, hosts.end());
  order.push_back(hosts.front());
  return order;
}

Status GangJob::Complete() {
  auto expanded = ExpandHostlist(node_list);
  if (!expanded) return expanded.error();
  hosts = *std::move(expanded);
  std::array<char, 512> reason{};
  if (!wire::ParseGangOptions(options_text.data(), options_text.size(), &options, reason.data(),
                              reason.size())) {
    return Error{Errc::kInvalid, reason.data()};
  }
  if (task_count == 0 || task_count > (1U << 24) || task_count < hosts.size()) {
    return Error{Errc::kInvalid, fmt::format("{} tasks on {} nodes is not a step", task_count, hosts.size())};
  }
  return {};
}

std::string SpaceOf(uint32_t uid) {
  return fmt::format("u{}", uid);
}

}  // namespace muster
