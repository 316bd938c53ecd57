#include "daemon/health/kernel_log.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>
#include <system_error>

namespace muster {
namespace {

constexpr size_t kReadsAtOpen = 65'536;
constexpr size_t kReadsPerTurn = 128;  // so that a flood does not keep the loop from its timers
constexpr size_t kMaxLine = 16 << 10;  // the kernel's own limit is 8 KiB
constexpr size_t kLeads = 16;
constexpr int64_t kMostDrift = 5'000;  // one in so many: 200 ppm
constexpr int64_t kMaxAheadUs =
    86'400'000'000;  // no clock drifts by more than a day: such a stamp is nonsense

int64_t Now(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

KernelLog::KernelLog(Loop& loop)
    : KernelLog(loop, {[] { return Now(CLOCK_REALTIME); }, [] { return Now(CLOCK_MONOTONIC); }}) {}
KernelLog::KernelLog(Loop& loop, Clock clock) : loop_(loop), clock_(std::move(clock)) {}
KernelLog::~KernelLog() {
  if (watched_) loop_.Unwatch(fd_.get());
}

void KernelLog::Open(const std::string& path) {
  if (path.empty()) return;
  fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_.valid()) {
    spdlog::warn(
        "kernel log {}: {}; faults will be reported without what the kernel said about them (musterd needs "
        "CAP_SYSLOG and the device; `kernel_log: \"\"` ends this message)",
        path, std::strerror(errno));
    return;
  }
  // What is there now, but for a file or a device that never ends; then what comes.
  size_t reads = 0;
  while (!ended_ && reads < kReadsAtOpen && Read()) ++reads;
  if (ended_) return;  // a file: it is not watched for growth
  try {
    loop_.Watch(fd_.get(), EPOLLIN, [this](uint32_t) { Ready(); });
    watched_ = true;
  } catch (const std::system_error& e) {
    spdlog::warn("kernel log {}: it cannot be watched: {}", path, e.what());
  }
}

void KernelLog::Ready() {
  for (size_t i = 0; i < kReadsPerTurn; ++i) {
    if (!Read()) return;
  }
}

// False when there is nothing to read now.
bool KernelLog::Read() {
  std::array<char, 16 << 10> block{};
  const ssize_t size = ::read(fd_.get(), block.data(), block.size());
  if (size > 0) {
    Take({block.data(), static_cast<size_t>(size)});
    return true;
  }
  const int error = size < 0 ? errno : 0;
  // EPIPE: records were overwritten before they were read; EINVAL: one was longer than the block.
  if (error == EPIPE || error == EINTR || error == EINVAL) return true;
  live_ = true;
  if (error == EAGAIN) return false;
  ended_ = true;
  if (watched_) {
    spdlog::warn("kernel log: {}; it is read no more", error == 0 ? "closed" : std::strerror(error));
    loop_.Unwatch(fd_.get());
    watched_ = false;
  }
  return false;
}

void KernelLog::Take(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const std::string_view part = bytes.substr(0, newline);
    if (partial_.size() + part.size() <= kMaxLine) partial_ += part;
    if (newline == std::string_view::npos) return;
    // Lines that begin with a space belong to the record before: device and subsystem.
    if (!partial_.empty() && partial_.front() != ' ') Line(partial_);
    partial_.clear();
    bytes.remove_prefix(newline + 1);
  }
}

void KernelLog::Line(std::string_view line) {
  const std::optional<KernelRecord> record = ParseKernelRecord(line);
  if (!record) return;
  const int64_t time_ns = TimeOf(record->log_us);
  std::optional<KernelFact> fact = parser_.Parse(*record);
  if (!fact) return;
  fact->time_ns = time_ns;
  if (facts_.size() >= kCapacity) facts_.pop_front();
  facts_.push_back(*fact);
  if (live_ && heard_) heard_(*fact);
}

// The log's clock is not steered by NTP as the others are: after weeks it is off by seconds. A record that is read as
// it comes shows by how much: `now` minus the time by its stamp, at most too large by how long the reading took. The
// smallest of the last few is the drift, as far as a clock can drift in the uptime.
int64_t KernelLog::TimeOf(int64_t log_us) {
  const int64_t now = clock_.realtime_ns();
  const int64_t uptime = clock_.monotonic_ns();
  const int64_t stamp = std::min(log_us, uptime / 1'000 + kMaxAheadUs) * 1'000;
  const int64_t by_stamp = now - uptime + stamp;
  if (!live_) return by_stamp;
  leads_.push_back(now - by_stamp);
  if (leads_.size() > kLeads) leads_.pop_front();
  const int64_t limit = uptime / kMostDrift;
  const int64_t drift = std::clamp(*std::min_element(leads_.begin(), leads_.end()), -limit, limit);
  if (!corrected_) {
    corrected_ = true;
    for (KernelFact& fact : facts_) fact.time_ns += drift;
  }
  return by_stamp + drift;
}

std::vector<KernelFact> KernelLog::Near(int64_t realtime_ns, int64_t before_ns, int64_t after_ns) const {
  std::vector<KernelFact> near;
  for (const KernelFact& fact : facts_) {
    if (fact.time_ns >= realtime_ns - before_ns && fact.time_ns <= realtime_ns + after_ns)
      near.push_back(fact);
  }
  return near;
}

}  // namespace muster
