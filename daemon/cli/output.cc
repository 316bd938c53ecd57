#include "daemon/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "daemon/cli/table.h"

namespace muster {
namespace {

using cli::Row;
using cli::Table;
using cli::Time;
using nlohmann::json;

// "n1, n2" by role, in the nodes' order; nothing for a gang of one role.
std::vector<std::pair<std::string, std::string>> NodesByRole(const json& gang) {
  std::vector<std::pair<std::string, std::string>> found;
  const json roles = gang.value("roles", json::array());
  for (size_t node = 0; node < roles.size() && node < gang.at("nodes").size(); ++node) {
    const std::string role = roles[node];
    const std::string name = gang.at("nodes")[node];
    const auto known =
        std::find_if(found.begin(), found.end(), [&](const auto& one) { return one.first == role; });
    if (known == found.end()) {
      found.emplace_back(role, name);
    } else {
      known->second += ", " + name;
    }
  }
  return found;
}

}  // namespace

std::string StatusTable(const json& document) {
  std::vector<Row> rows = {
      {"GANG", "STATE", "GENERATION", "STEP", "RESTARTS", "TASKS", "NODES", "COORDINATOR", "UPDATED"}};
  std::string notes;
  for (const json& gang : document.at("gangs")) {
    std::string state = gang.at("state");
    if (state == "finished") state = gang.at("succeeded").get<bool>() ? "succeeded" : "failed";
    const std::string id = gang.at("gang");
    rows.push_back(
        {id, state, std::to_string(gang.at("generation").get<uint64_t>()),
         std::to_string(gang.at("step_reached").get<uint64_t>()),
         fmt::format("{} ({}/{} user)", gang.at("restarts").get<uint32_t>(),
                     gang.at("user_faults").get<uint32_t>(), gang.at("restart_limit").get<uint32_t>()),
         std::to_string(gang.at("tasks").get<uint32_t>()),
         fmt::format("{}/{}", gang.at("active").size(), gang.at("nodes").size()), gang.at("coordinator"),
         Time(gang.at("updated_ns"), false)});
    for (const auto& [role, nodes] : NodesByRole(gang)) notes += fmt::format("{}: {}: {}\n", id, role, nodes);
    const std::string cause = gang.at("first_cause");
    if (!cause.empty()) notes += fmt::format("{}: last fault: {}\n", id, cause);
    for (const size_t node : gang.value("exiting", std::vector<size_t>())) {
      notes += fmt::format("{}: {}: SIGKILL has ended its processes, and some have not gone yet\n", id,
                           gang.at("nodes").at(node).get<std::string>());
    }
    if (const std::string warm = gang.value("warm", ""); !warm.empty())
      notes += fmt::format("{}: warm starts: {}\n", id, warm);
    for (const json& slow : gang.value("stragglers", json::array())) {
      notes += fmt::format("{}: rank {} is slow: {}\n", id, slow.at("rank").get<uint32_t>(),
                           slow.at("why").get<std::string>());
    }
  }
  if (rows.size() == 1) return "no gangs\n";
  return Table(rows) + notes;
}

std::string EventsTable(const json& document) {
  std::vector<Row> rows;
  for (const json& event : document.at("events")) {
    rows.push_back({Time(event.at("time_ns"), true),
                    fmt::format("g{}", event.at("generation").get<uint64_t>()), event.at("kind"),
                    event.at("text")});
  }
  return rows.empty() ? "no events\n" : Table(rows);
}

std::string NodeText(const json& document) {
  const bool drain = document.at("drain");
  const std::string node = document.at("node");
  std::string text;
  for (const json& gang : document.at("gangs")) {
    const std::string id = gang;
    text += drain ? fmt::format("gang {} leaves {} at its next checkpoint, if it has room (muster events)\n",
                                id, node)
                  : fmt::format("gang {} may use {} again\n", id, node);
  }
  const std::string slurm = document.at("slurm");
  if (slurm != "done") return text + fmt::format("Slurm has not changed {}: {}\n", node, slurm);
  return text + fmt::format("{} is {} in Slurm\n", node, drain ? "drained" : "back");
}

std::string NodeViewText(const json& document) {
  const std::string node = document.at("node");
  std::string text =
      fmt::format("{} is {} for gangs\n", node, document.at("fit").get<bool>() ? "fit" : "not fit");
  if (document.at("findings").is_null()) text += "its health is not checked (health_timeout: 0)\n";
  for (const json& finding : document.at("findings")) {
    text += fmt::format("{}: {} {}\n", finding.at("sick").get<bool>() ? "sick" : "warning",
                        finding.at("subject").get<std::string>(), finding.at("what").get<std::string>());
  }
  for (const json& port : document.at("ports")) {
    text += fmt::format("port {}: {}, lost its link {} times\n", port.at("port").get<std::string>(),
                        port.at("up").get<bool>() ? "up" : "down", port.at("links_lost").get<uint64_t>());
    const std::string sick = port.at("sick");
    if (!sick.empty()) text += fmt::format("sick: {}\n", sick);
    for (const json& holding : port.at("holding"))
      text += fmt::format("warning: {}\n", holding.get<std::string>());
  }
  for (const json& gang : document.at("gangs")) {
    text += fmt::format("gang {} of uid {}\n", gang.at("gang").get<std::string>(),
                        gang.at("uid").get<uint32_t>());
  }
  for (const json& links : document.at("good_links")) {
    text += fmt::format("its links were good {} s ago ({} of uid {}: {})\n",
                        links.at("age_ms").get<int64_t>() / 1'000,
                        links.at("full").get<bool>() ? "the full test" : "the quick test",
                        links.at("uid").get<uint32_t>(), links.at("test").get<std::string>());
  }
  return text;
}

}  // namespace muster
