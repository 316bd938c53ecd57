#include "daemon/service/cluster_name.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/replace_file.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kFirstPause(1'000);
constexpr std::chrono::milliseconds kLongestPause(30'000);

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

ClusterName::ClusterName(Loop& loop, Slurm& slurm, const std::string& configured, std::string file,
                         std::function<void(const std::string&)> known)
    : loop_(loop),
      slurm_(slurm),
      file_(std::move(file)),
      known_(std::move(known)),
      name_(FirstLineOf(file_)) {
  if (!name_.empty()) known_(name_);
  if (configured.empty()) {
    Ask();
  } else {
    Hear(configured);
  }
}

ClusterName::~ClusterName() {
  if (timer_ != 0) loop_.Cancel(timer_);
}

void ClusterName::Ask() {
  timer_ = 0;
  slurm_.ClusterName([this](const Result<std::string>& name) {
    if (name) return Hear(*name);
    if (pause_.count() == 0)
      spdlog::warn("the cluster's name is not known: {}; asking again", name.error().message);
    pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
    timer_ = loop_.After(pause_, [this] { Ask(); });
  });
}

void ClusterName::Hear(const std::string& name) {
  if (name_.empty()) {
    name_ = name;
    if (Status written = ReplaceFile(file_, name_ + "\n", 0644); !written)
      spdlog::warn("{}", written.error().message);
    return known_(name_);
  }
  if (name != name_) {
    spdlog::error(
        "this cluster is called {} now, and was called {} when musterd was started first; musterd keeps to "
        "{}: once no gang runs, "
        "remove {} and restart musterd",
        name, name_, name_, file_);
  }
}

}  // namespace muster
