#include "daemon/agent/gang_state.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/replace_file.h"
#include "daemon/auth/auth_session.h"
#include "wire/wire.h"

namespace muster {
namespace {

std::string HexDecode(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace

std::string GangStatePath(const std::string& state_dir, const std::string& gang) {
  return fmt::format("{}/{}.json", state_dir, gang);
}

Status SaveGangState(const std::string& state_dir, const GangState& state) {
  nlohmann::json json = {{"version", 1},
                         {"job", state.job.job_id},
                         {"step", state.job.step_id},
                         {"restart_count", state.job.restart_count},
                         {"submission", SubmissionText(state.job.submission)},
                         {"launched_ns", state.job.launched_ns},
                         {"uid", state.job.uid},
                         {"gid", state.job.gid},
                         {"task_count", state.job.task_count},
                         {"node_list", state.job.node_list},
                         {"options", state.job.options_text},
                         {"components", state.job.components_text},
                         {"node", state.node},
                         {"local_tasks", state.local_tasks},
                         {"tasks", state.tasks},
                         {"supervisors", state.supervisors},
                         {"coordinator", state.coordinator},
                         {"term", state.term},
                         {"beat_key", HexEncode(state.beat_key)},
                         {"started_generation", state.started_generation},
                         {"token", HexEncode(state.token)}};
  if (state.started_restore) json["started_restore"] = *state.started_restore;
  if (state.failed.generation() != 0)
    json["failed"] = {{"generation", state.failed.generation()}, {"saves", state.failed.saves()}};
  if (state.checkpoint_bad) json["checkpoint_bad"] = HexEncode(state.checkpoint_bad->SerializeAsString());
  if (state.steps.generation != 0) {
    json["steps"] = {{"generation", state.steps.generation},
                     {"order", HexEncode(state.steps.order.SerializeAsString())},
                     {"asked", state.steps.asked},
                     {"opened", state.steps.opened}};
  }
  const std::string path = GangStatePath(state_dir, state.job.Id());
  // The reasons are what a program's or a store's errors say, and may have been cut off.
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::error_code ignored;
  std::filesystem::create_directories(state_dir, ignored);
  return ReplaceFile(path, text, 0600);
}

void RemoveGangState(const std::string& state_dir, const std::string& gang) {
  const std::string path = GangStatePath(state_dir, gang);
  ::unlink(path.c_str());
  ::unlink((path + ".cluster").c_str());
}

std::vector<GangState> LoadGangStates(const std::string& state_dir) {
  std::vector<GangState> states;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(state_dir, error)) {
    if (entry.path().extension() != ".json") continue;
    try {
      std::ifstream file(entry.path());
      const auto json = nlohmann::json::parse(file);
      GangState state;
      state.job.job_id = json.at("job");
      state.job.step_id = json.at("step");
      state.job.restart_count = json.at("restart_count");
      state.job.submission = SubmissionOf(json.value("submission", ""));
      state.job.launched_ns = json.value("launched_ns", int64_t{0});
      state.job.uid = json.at("uid");
      state.job.gid = json.at("gid");
      state.job.task_count = json.at("task_count");
      state.job.node_list = json.at("node_list");
      state.job.options_text = json.at("options");
      state.node = json.at("node");
      state.local_tasks = json.at("local_tasks");
      state.tasks = json.at("tasks").get<std::vector<uint32_t>>();
      state.token = HexDecode(json.at("token"));
      // Not in the first version's files.
      state.term = json.value("term", uint64_t{0});
      state.job.components_text = json.value("components", "");
      state.beat_key = HexDecode(json.value("beat_key", ""));
      if (json.contains("supervisors"))
        state.supervisors = json.at("supervisors").get<std::map<uint32_t, pid_t>>();
      state.started_generation = json.value("started_generation", uint64_t{0});
      if (json.contains("started_restore")) state.started_restore = json.at("started_restore");
      if (json.contains("failed")) {
        const auto& failed = json.at("failed");
        for (const auto& [step, why] : failed.at("saves").get<std::map<uint64_t, std::string>>())
          state.failed.Add(failed.at("generation"), step, why);
      }
      if (json.contains("checkpoint_bad") &&
          !state.checkpoint_bad.emplace().ParseFromString(HexDecode(json.at("checkpoint_bad"))))
        throw std::runtime_error("its bad checkpoint is none");
      if (json.contains("steps")) {
        const auto& steps = json.at("steps");
        state.steps.generation = steps.at("generation");
        state.steps.asked = steps.at("asked");
        state.steps.opened = steps.at("opened").get<std::set<uint32_t>>();
        if (!state.steps.order.ParseFromString(HexDecode(steps.at("order"))))
          throw std::runtime_error("its order of steps is none");
      }
      Status complete = state.job.Complete();
      if (complete) state.coordinator = json.value("coordinator", state.job.CandidateNodes().front());
      const bool tasks_fit = state.tasks.size() <= state.local_tasks && state.local_tasks > 0 &&
                             std::all_of(state.tasks.begin(), state.tasks.end(),
                                         [&](uint32_t task) { return task < state.job.task_count; });
      if (!complete || state.token.size() != wire::kTokenBytes || state.node >= state.job.hosts.size() ||
          state.coordinator >= state.job.hosts.size() || !tasks_fit) {
        throw std::runtime_error(complete ? "inconsistent" : complete.error().message);
      }
      states.push_back(std::move(state));
    } catch (const std::exception& e) {
      spdlog::warn("{}: not a gang's state: {}", entry.path().string(), e.what());
    }
  }
  return states;
}

}  // namespace muster
