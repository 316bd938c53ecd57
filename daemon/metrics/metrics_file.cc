#include "daemon/metrics/metrics_file.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/replace_file.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kEvery{15};  // as often as Prometheus usually asks

}  // namespace

MetricsFile::MetricsFile(Loop& loop, std::string path, std::function<std::string()> gather)
    : loop_(loop), path_(std::move(path)), gather_(std::move(gather)) {
  if (!path_.empty()) Write();
}

MetricsFile::~MetricsFile() {
  loop_.Cancel(timer_);
  if (!path_.empty()) worker_.Do([path = path_] { ::unlink(path.c_str()); });
}

void MetricsFile::Write() {
  timer_ = loop_.After(kEvery, [this] { Write(); });
  if (shared_->writing.exchange(true)) return;
  worker_.Do([path = path_, text = gather_(), shared = shared_] {
    const Status done =
        ReplaceFile(path, text, 0644);  // node exporter reads *.prom, and none without its directory
    std::string error = done || done.error().code == Errc::kNotFound ? "" : done.error().message;
    if (!error.empty() && error != shared->said) spdlog::warn("metrics: {}", error);
    shared->said = std::move(error);
    shared->writing = false;
  });
}

}  // namespace muster
