#include "daemon/coordinator/record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace muster {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;

}  // namespace

json GangRecord::Summary() const {
  return {{"version", kVersion},
          {"gang", gang},
          {"key", key},
          {"job", job_id},
          {"step", step_id},
          {"restart_count", restart_count},
          {"uid", uid},
          {"state", state},
          {"succeeded", succeeded},
          {"term", term},
          {"generation", generation},
          {"coordinator", coordinator},
          {"tasks", task_count},
          {"nodes", nodes},
          {"restarts", restarts},
          {"user_faults", user_faults},
          {"restart_limit", restart_limit},
          {"step_reached", step_reached},
          {"restored_from", restore ? json(restore_step) : json()},
          {"created_ns", created_ns},
          {"updated_ns", updated_ns},
          {"first_cause", first_cause},
          {"finish_cause", finish_cause ? json(*finish_cause) : json()},
          {"finish_code", finish_code ? json(*finish_code) : json()}};
}

std::string GangRecord::Encode() const {
  json document = Summary();
  json list = json::array();
  for (const HistoryEvent& event : events) {
    list.push_back({{"time_ns", event.time_ns},
                    {"generation", event.generation},
                    {"kind", event.kind},
                    {"text", event.text}});
  }
  document["events"] = std::move(list);
  // Programs' names and stderr may hold any bytes.
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<GangRecord> GangRecord::Decode(const std::string& text) {
  try {
    const json document = json::parse(text);
    if (document.at("version") != kVersion) {
      return Error{Errc::kCorrupt, fmt::format("record has version {}, this daemon reads {}",
                                               document.at("version").dump(), kVersion)};
    }
    GangRecord record;
    document.at("gang").get_to(record.gang);
    document.at("key").get_to(record.key);
    document.at("job").get_to(record.job_id);
    document.at("step").get_to(record.step_id);
    document.at("restart_count").get_to(record.restart_count);
    document.at("uid").get_to(record.uid);
    document.at("state").get_to(record.state);
    document.at("succeeded").get_to(record.succeeded);
    document.at("term").get_to(record.term);
    document.at("generation").get_to(record.generation);
    document.at("coordinator").get_to(record.coordinator);
    document.at("tasks").get_to(record.task_count);
    document.at("nodes").get_to(record.nodes);
    document.at("restarts").get_to(record.restarts);
    document.at("user_faults").get_to(record.user_faults);
    document.at("restart_limit").get_to(record.restart_limit);
    document.at("step_reached").get_to(record.step_reached);
    record.restore = !document.at("restored_from").is_null();
    if (record.restore) document.at("restored_from").get_to(record.restore_step);
    document.at("created_ns").get_to(record.created_ns);
    document.at("updated_ns").get_to(record.updated_ns);
    document.at("first_cause").get_to(record.first_cause);
    if (const json& cause = document.at("finish_cause"); !cause.is_null())
      record.finish_cause = cause.get<uint32_t>();
    if (const json& code = document.at("finish_code"); !code.is_null())
      record.finish_code = code.get<int32_t>();
    for (const json& item : document.at("events")) {
      record.events.push_back({item.at("time_ns"), item.at("generation"), item.at("kind"), item.at("text")});
    }
    return record;
  } catch (const json::exception& e) {
    return Error{Errc::kCorrupt, fmt::format("not a gang record: {}", e.what())};
  }
}

}  // namespace muster
