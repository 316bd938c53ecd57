#include "daemon/cli/output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

namespace muster {
namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

// Columns as wide as their widest cell; the last one is not padded.
std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i + 1 == row.size() ? row[i] + "\n" : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
  }
  return text;
}

std::string Time(int64_t ns, bool precise) {
  const std::time_t seconds = ns / 1'000'000'000;
  const std::string text = fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
  return precise ? fmt::format("{}.{:03}", text, ns / 1'000'000 % 1000) : text;
}

std::string Bytes(uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace

std::string StatusTable(const json& document) {
  std::vector<Row> rows = {
      {"GANG", "STATE", "GENERATION", "STEP", "RESTARTS", "TASKS", "NODES", "COORDINATOR", "UPDATED"}};
  std::string causes;
  for (const json& gang : document.at("gangs")) {
    std::string state = gang.at("state");
    if (state == "finished") state = gang.at("succeeded").get<bool>() ? "succeeded" : "failed";
    const std::string id = gang.at("gang");
    rows.push_back(
        {id, state, std::to_string(gang.at("generation").get<uint64_t>()),
         std::to_string(gang.at("step_reached").get<uint64_t>()),
         fmt::format("{} ({}/{} user)", gang.at("restarts").get<uint32_t>(),
                     gang.at("user_faults").get<uint32_t>(), gang.at("restart_limit").get<uint32_t>()),
         std::to_string(gang.at("tasks").get<uint32_t>()), std::to_string(gang.at("nodes").size()),
         gang.at("coordinator"), Time(gang.at("updated_ns"), false)});
    const std::string cause = gang.at("first_cause");
    if (!cause.empty()) causes += fmt::format("{}: last fault: {}\n", id, cause);
  }
  if (rows.size() == 1) return "no gangs\n";
  return Table(rows) + causes;
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

std::string CheckpointTable(const json& document) {
  std::vector<Row> rows = {{"STEP", "SIZE", "MEMBERS", "GENERATION", "COMMITTED", "STATE"}};
  for (const json& item : document.at("checkpoints")) {
    std::string state = item.at("state");
    if (item.at("latest").get<bool>()) state += ", latest";
    const std::string reason = item.at("reason");
    if (!reason.empty()) state += ": " + reason;
    rows.push_back({std::to_string(item.at("step").get<uint64_t>()), Bytes(item.at("bytes")),
                    std::to_string(item.at("members").get<uint32_t>()),
                    std::to_string(item.at("generation").get<uint64_t>()), Time(item.at("created_ns"), false),
                    state});
  }
  return rows.size() == 1 ? "no checkpoints\n" : Table(rows);
}

std::string VerifyTable(const json& document) {
  std::vector<Row> rows = {{"STEP", "SIZE", "RESULT"}};
  for (const json& item : document.at("checkpoints")) {
    rows.push_back(
        {std::to_string(item.at("step").get<uint64_t>()), Bytes(item.at("bytes")),
         item.at("verified").get<bool>() ? "verified" : "BAD: " + item.at("reason").get<std::string>()});
  }
  return rows.size() == 1 ? "no checkpoints\n" : Table(rows);
}

}  // namespace muster
