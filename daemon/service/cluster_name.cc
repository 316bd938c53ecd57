#include "daemon/service/cluster_name.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "base/replace_file.h"

namespace muster {
namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(1000);

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

ClusterName::ClusterName(Loop& loop, Slurm& slurm, const std::string& configured, std::string file,
                         std::function<void(const std::string&)> known)
    : loop_(loop), slurm_(slurm), file_(std::move(file)), known_(std::move(known)) {
  if (!configured.empty()) {
    known_(configured);
    return;
  }
  name_ = FirstLineOf(file_);
  if (!name_.empty()) known_(name_);
  Ask();
}

ClusterName::~ClusterName() {
  if (timer_ != 0) loop_.Cancel(timer_);
}

void ClusterName::Ask() {
  timer_ = 0;
  slurm_.ClusterName([this](const Result<std::string>& name) { Answered(name); });
}

void ClusterName::Answered(const Result<std::string>& name) {
  if (!name) {
    if (!said_) spdlog::warn("the cluster's name is not known: {}; asking again", name.error().message);
    said_ = true;
    timer_ = loop_.After(kAskAgain, [this] { Ask(); });
    return;
  }
  if (name_.empty()) {
    name_ = *name;
    if (Status written = ReplaceFile(file_, name_ + "\n", 0644); !written)
      spdlog::warn("{}", written.error().message);
    return known_(name_);
  }
  // What runs has its record and its checkpoints under the name that it began with.
  if (*name != name_) {
    spdlog::error(
        "Slurm calls this cluster {}, and was called {} before; musterd keeps to {}: once no gang runs, "
        "remove {} and restart musterd",
        *name, name_, name_, file_);
  }
}

}  // namespace muster
