#include "daemon/metrics/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kEvery{15};  // as often as Prometheus usually asks

// "" or what went wrong.
std::string Replace(const std::string& path, const std::string& text) {
  const std::string made = path + ".new";  // node exporter reads *.prom
  const UniqueFd file(::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.valid() && errno == ENOENT) return "";
  if (!file.valid()) return fmt::format("cannot write {}: {}", made, std::strerror(errno));
  const bool written = ::fchmod(file.get(), 0644) == 0 &&
                       ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::rename(made.c_str(), path.c_str()) == 0;
  if (written) return "";
  std::string error = fmt::format("cannot write {}: {}", path, std::strerror(errno));
  ::unlink(made.c_str());
  return error;
}

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
    std::string error = Replace(path, text);
    if (!error.empty() && error != shared->said) spdlog::warn("metrics: {}", error);
    shared->said = std::move(error);
    shared->writing = false;
  });
}

}  // namespace muster
