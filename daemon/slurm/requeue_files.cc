#include "daemon/slurm/requeue_files.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/replace_file.h"

namespace muster::slurm {

using nlohmann::json;

std::string RequeueFiles::PathOf(const RequeueRequest& request) const {
  return fmt::format("{}/{}-r{}-{}.json", directory_, request.run.job_id, request.run.restart_count,
                     request.run.seen);
}

void RequeueFiles::Save(const RequeueRequest& request) const {
  if (directory_.empty()) return;
  const json text = {{"version", 1},
                     {"job", request.run.job_id},
                     {"restarts", request.run.restart_count},
                     {"uid", request.run.uid},
                     {"seen", request.run.seen},
                     {"dead_nodes", request.dead_nodes},
                     {"reason", request.reason},
                     {"failed", request.failed},
                     {"all_down", request.all_down}};
  const std::string path = PathOf(request);
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  const Status saved = ReplaceFile(path, text.dump(-1, ' ', false, json::error_handler_t::replace), 0600);
  if (!saved) spdlog::warn("{}: a restart of musterd would lose this requeue", saved.error().message);
}

void RequeueFiles::Remove(const RequeueRequest& request) const {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove(PathOf(request), ignored);
}

std::vector<RequeueRequest> RequeueFiles::Load() const {
  std::vector<RequeueRequest> found;
  if (directory_.empty()) return found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    try {
      std::ifstream file(entry.path());
      const json text = json::parse(file);
      RequeueRequest request;
      request.run = {text.at("job"), text.at("restarts"), text.at("uid"), text.at("seen")};
      request.dead_nodes = text.at("dead_nodes").get<std::vector<std::string>>();
      request.reason = text.at("reason");
      request.failed = text.at("failed");
      request.all_down = text.value("all_down", request.failed);
      found.push_back(std::move(request));
    } catch (const std::exception& e) {
      spdlog::warn("{}: not a requeue: {}", entry.path().string(), e.what());
      std::filesystem::remove(entry.path(), error);
    }
  }
  return found;
}

}  // namespace muster::slurm
