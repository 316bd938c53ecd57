// Memory, and the clock.
#include <fmt/format.h>
#include <sys/timex.h>

#include <cerrno>
#include <thread>

#include "base/small_files.h"
#include "daemon/health/findings.h"

namespace muster {
namespace {

// Corrected errors are what ECC is for; so many between two checks are news.
constexpr uint64_t kManyCorrected = 100;
constexpr std::chrono::milliseconds kSettleStep{50};

void CheckAvailable(const HealthOptions& options, Findings& findings) {
  const auto until = std::chrono::steady_clock::now() + options.settle;
  auto available = ReadMemInfo(options.proc_root, "MemAvailable:");
  while (available && *available < options.memory_min_bytes && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kSettleStep);
    available = ReadMemInfo(options.proc_root, "MemAvailable:");
  }
  if (available && *available < options.memory_min_bytes) {
    findings.Sick(fmt::format("has {} MiB available, the limit is {} MiB", *available >> 20,
                              options.memory_min_bytes >> 20));
  }
}

}  // namespace

void CheckMemory(const HealthOptions& options, Findings& findings) {
  findings.Checking("memory");
  CheckAvailable(options, findings);
  // Pages that the kernel does not use any more, also on suspicion only.
  const auto corrupted = ReadMemInfo(options.proc_root, "HardwareCorrupted:");
  if (corrupted && *corrupted > 0) {
    findings.Warn(
        fmt::format("has {} KiB taken out of use by the kernel for hardware errors", *corrupted >> 10));
  }
  const std::string edac = options.sys_root + "/devices/system/edac/mc";
  for (const std::string& controller : ListDirectory(edac)) {
    if (!controller.starts_with("mc")) continue;
    const std::string base = edac + "/" + controller;
    if (const auto count = ReadNumber(base + "/ue_count"); count && *count > 0) {
      findings.Sick(fmt::format("had {} uncorrected errors at controller {} since boot", *count, controller));
    }
    const auto count = ReadNumber(base + "/ce_count");
    if (!count) continue;
    const std::string name = controller + " corrected";
    const auto last = options.last_counters.find(name);
    if (last != options.last_counters.end() && *count >= last->second + kManyCorrected) {
      findings.Warn(fmt::format("had {} corrected errors at controller {} since the last check",
                                *count - last->second, controller));
    }
    findings.Counter(name, *count);
  }
}

void JudgeClock(int state, int status, Findings& findings) {
  findings.Checking("clock");
  if (state == TIME_ERROR || (status & STA_UNSYNC) != 0) {
    findings.Warn("is not synchronised, says the kernel (with chrony: is `rtcsync` set?)");
  }
}

void CheckClock(Findings& findings) {
  findings.Checking("clock");
  timex now{};
  const int state = ::adjtimex(&now);  // modes 0: only asks
  if (state >= 0) {
    JudgeClock(state, now.status, findings);
  } else if (errno != EPERM && errno != ENOSYS) {
    findings.Warn("could not be asked: adjtimex failed");
  }
}

}  // namespace muster
