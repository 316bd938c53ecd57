#include "daemon/coordinator/record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace muster {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;
constexpr int64_t kLongestStartNs = 1000LL * 24 * 3600 * 1'000'000'000;

// The library converts any number to any other; a record with a number that does not fit is damaged.
template <typename T>
void Read(const json& value, T* out) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const bool fits = value.is_number_unsigned()
                          ? std::in_range<T>(value.get<uint64_t>())
                          : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
    if (!fits) throw std::out_of_range("the number " + value.dump() + " does not fit");
  }
  value.get_to(*out);
}
template <typename T>
void ReadIfThere(const json& document, const char* name, T* out) {
  if (const auto found = document.find(name); found != document.end()) Read(*found, out);
}
template <typename T>
void Read(const json& value, std::optional<T>* out) {
  if (value.is_null()) return;
  Read(value, &out->emplace());
}

json StartsJson(const std::map<std::string, hang::SeenStarts>& starts) {
  json object = json::object();
  for (const auto& [role, seen] : starts)
    object[role] = {{"first_step_ns", seen.first_step_ns}, {"tenth_step_ns", seen.tenth_step_ns}};
  return object;
}

}  // namespace

json GangRecord::Summary() const {
  return {{"version", kVersion},
          {"gang", gang},
          {"key", key},
          {"job", job_id},
          {"step", step_id},
          {"restart_count", restart_count},
          {"submission", SubmissionText(submission)},
          {"launched_ns", launched_ns},
          {"uid", uid},
          {"state", state},
          {"succeeded", succeeded},
          {"term", term},
          {"generation", generation},
          {"coordinator", coordinator},
          {"tasks", task_count},
          {"nodes", nodes},
          {"active", active},
          {"before", before},
          {"placed", placed},
          {"lost", lost},
          {"ended", ended},
          {"away", away},
          {"excluded", excluded},
          {"draining", draining},
          {"exiting", exiting},
          {"task_counts", task_counts},
          {"roles", roles},
          {"succeeding", succeeding},
          {"terminating", terminating},
          {"warned", warned},
          {"witnesses", witnesses},
          {"former_witnesses", former},
          {"restarts_without_progress", restarts_without_progress},
          {"last_signature", last_signature},
          {"restarts", std::accumulate(restarts.begin(), restarts.end(), 0U,
                                       [](uint32_t sum, const auto& item) { return sum + item.second; })},
          {"restarts_by_cause", restarts},
          {"user_faults", user_faults},
          {"user_fault_times", user_fault_times},
          {"progress_since_user_fault", progress_since_user_fault},
          {"restart_limit", restart_limit},
          {"step_reached", step_reached},
          {"restored_from", restore ? json(restore_step) : json()},
          {"created_ns", created_ns},
          {"updated_ns", updated_ns},
          {"first_cause", first_cause},
          {"starts", StartsJson(starts)},
          {"warm", warm},
          {"restart_cause", restart_cause},
          {"finish_cause", finish_cause ? json(*finish_cause) : json()},
          {"finish_code", finish_code ? json(*finish_code) : json()}};
}

std::string GangRecord::IndexEntry() const {
  return json{{"gang", gang}, {"job", job_id}, {"step", step_id}, {"created_ns", created_ns}}.dump();
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
    Read(document.at("gang"), &record.gang);
    Read(document.at("key"), &record.key);
    Read(document.at("job"), &record.job_id);
    Read(document.at("step"), &record.step_id);
    Read(document.at("restart_count"), &record.restart_count);
    record.submission = SubmissionOf(document.at("submission").get<std::string>());
    Read(document.at("launched_ns"), &record.launched_ns);
    Read(document.at("uid"), &record.uid);
    Read(document.at("state"), &record.state);
    Read(document.at("succeeded"), &record.succeeded);
    Read(document.at("term"), &record.term);
    Read(document.at("generation"), &record.generation);
    Read(document.at("coordinator"), &record.coordinator);
    Read(document.at("tasks"), &record.task_count);
    Read(document.at("nodes"), &record.nodes);
    // Not in the first version's records, whose gangs used all of their nodes.
    ReadIfThere(document, "active", &record.active);
    ReadIfThere(document, "before", &record.before);
    ReadIfThere(document, "placed", &record.placed);
    ReadIfThere(document, "lost", &record.lost);
    ReadIfThere(document, "ended", &record.ended);
    ReadIfThere(document, "away", &record.away);
    ReadIfThere(document, "excluded", &record.excluded);
    ReadIfThere(document, "draining", &record.draining);
    ReadIfThere(document, "exiting", &record.exiting);
    ReadIfThere(document, "task_counts", &record.task_counts);
    ReadIfThere(document, "roles", &record.roles);
    ReadIfThere(document, "succeeding", &record.succeeding);
    ReadIfThere(document, "terminating", &record.terminating);
    ReadIfThere(document, "warned", &record.warned);
    ReadIfThere(document, "witnesses", &record.witnesses);
    ReadIfThere(document, "former_witnesses", &record.former);
    ReadIfThere(document, "restarts_without_progress", &record.restarts_without_progress);
    ReadIfThere(document, "last_signature", &record.last_signature);
    for (const auto* list :
         {&record.active, &record.before, &record.lost, &record.ended, &record.away, &record.exiting}) {
      for (const uint32_t node : *list) {
        if (node >= record.nodes.size()) throw std::out_of_range("a node's number is none of the gang's");
      }
    }
    ReadIfThere(document, "restarts_by_cause", &record.restarts);
    Read(document.at("user_faults"), &record.user_faults);
    ReadIfThere(document, "user_fault_times", &record.user_fault_times);
    ReadIfThere(document, "progress_since_user_fault", &record.progress_since_user_fault);
    for (const int64_t time : record.user_fault_times) {
      if (time < 0) throw std::out_of_range("a time before 1970");
    }
    Read(document.at("restart_limit"), &record.restart_limit);
    Read(document.at("step_reached"), &record.step_reached);
    record.restore = !document.at("restored_from").is_null();
    if (record.restore) Read(document.at("restored_from"), &record.restore_step);
    Read(document.at("created_ns"), &record.created_ns);
    Read(document.at("updated_ns"), &record.updated_ns);
    Read(document.at("first_cause"), &record.first_cause);
    if (const auto found = document.find("starts"); found != document.end()) {
      for (const auto& [role, item] : found->get_ref<const json::object_t&>()) {
        hang::SeenStarts& seen = record.starts[role];
        Read(item.at("first_step_ns"), &seen.first_step_ns);
        Read(item.at("tenth_step_ns"), &seen.tenth_step_ns);
        if (seen.first_step_ns < 0 || seen.tenth_step_ns < 0 || seen.first_step_ns > kLongestStartNs ||
            seen.tenth_step_ns > kLongestStartNs)
          throw std::out_of_range("the time of a start does not fit");
      }
    }
    ReadIfThere(document, "warm", &record.warm);
    record.restart_cause = record.first_cause;
    ReadIfThere(document, "restart_cause", &record.restart_cause);
    Read(document.at("finish_cause"), &record.finish_cause);
    Read(document.at("finish_code"), &record.finish_code);
    for (const json& item : document.at("events").get_ref<const json::array_t&>()) {
      HistoryEvent& event = record.events.emplace_back();
      Read(item.at("time_ns"), &event.time_ns);
      Read(item.at("generation"), &event.generation);
      Read(item.at("kind"), &event.kind);
      Read(item.at("text"), &event.text);
    }
    return record;
  } catch (const std::exception& e) {
    return Error{Errc::kCorrupt, fmt::format("not a gang record: {}", e.what())};
  }
}

}  // namespace muster
