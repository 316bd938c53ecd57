#include "daemon/agent/fabric_environment.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "base/result.h"
#include "net/fabric/nccl_environment.h"

namespace muster {
namespace {

// A gang that starts within this time after an interface came is told the old state: NCCL then looks for itself. Eight adapters have
// some two thousand GIDs to read.
constexpr auto kLookAgain = std::chrono::seconds(30);

// Nothing where nobody has described a fabric.
Result<std::vector<std::string>> LookAtFabric(const std::string& settings_path) {
  std::vector<std::string> variables;
  const auto settings = roce::LoadSettings(settings_path);
  if (!settings) return settings.error();
  if (settings->networks.empty()) return variables;
  const roce::Host host = roce::ThisHost();
  for (const fabric::Variable& one :
       fabric::NcclEnvironment(fabric::LookAtDevices(host, *settings), roce::FabricNames(host, *settings),
                               *settings, std::nullopt)) {
    if (!one.in_file) variables.push_back(one.key + "=" + one.value);
  }
  return variables;
}

}  // namespace

FabricEnvironment::FabricEnvironment(std::string settings_path)
    : settings_path_(std::move(settings_path)), thread_([this] { Run(); }) {}

FabricEnvironment::~FabricEnvironment() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::vector<std::string> FabricEnvironment::Variables() {
  const std::lock_guard lock(mutex_);
  return variables_;
}

void FabricEnvironment::Run() {
  std::string said;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    auto found = LookAtFabric(settings_path_);
    // Once for each new cause.
    const std::string wrong = found ? "" : found.error().message;
    if (!wrong.empty() && wrong != said) spdlog::warn("members are told nothing of the fabric: {}", wrong);
    said = wrong;
    lock.lock();
    variables_ = found ? std::move(*found) : std::vector<std::string>();
    wake_.wait_for(lock, kLookAgain, [this] { return stopping_; });
  }
}

}  // namespace muster
