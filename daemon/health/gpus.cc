#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <thread>

#include "base/small_files.h"
#include "daemon/health/findings.h"
#include "daemon/health/nvml.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kGpuSettleStep{100};
constexpr unsigned int kMaxProcesses = 4'096;

bool HasNvidiaGpu(const std::string& sys_root) {
  const std::string devices = sys_root + "/bus/pci/devices";
  for (const std::string& device : ListDirectory(devices)) {
    // A display or 3D controller of vendor NVIDIA.
    if (ReadLine(devices + "/" + device + "/vendor") == "0x10de" &&
        ReadLine(devices + "/" + device + "/class").starts_with("0x03")) {
      return true;
    }
  }
  return false;
}

// NVML numbers processes as the host does. Seen from inside a PID namespace none of them would exist.
bool SeesHostProcesses(const std::string& proc_root) {
  std::array<char, 64> name{};
  const ssize_t size = ::readlink((proc_root + "/self/ns/pid").c_str(), name.data(), name.size() - 1);
  return size > 0 &&
         std::string_view(name.data()) == "pid:[4026531836]";  // the first one's number, in every kernel
}

bool Lives(const std::string& proc_root, unsigned int pid) {
  const auto text = ReadSmallFile(fmt::format("{}/{}/stat", proc_root, pid));
  if (!text) {
    // /proc may hide others' processes (hidepid).
    return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
  }
  const std::vector<std::string> fields =
      Words(std::string_view(*text).substr(std::min(text->rfind(')') + 1, text->size())));
  // A zombie whose other threads have ended too; field 17 counts them.
  const bool zombie = !fields.empty() && (fields[0] == "Z" || fields[0] == "X");
  return !zombie || (fields.size() > 17 && ParseDecimal(fields[17]).value_or(0) > 1);
}

class Gpu {
 public:
  Gpu(const nvml::Api& api, const HealthOptions& options, Findings& findings)
      : api_(api),
        options_(options),
        findings_(findings),
        settled_(std::chrono::steady_clock::now() + options.settle) {}

  void Check(unsigned int index) {
    findings_.Checking(fmt::format("gpu {}", index));
    lost_ = false;
    const nvml::Return got = api_.by_index(index, &device_);
    if (got == nvml::kNoPermission) {
      findings_.Warn("may not be asked");
      return;
    }
    if (!Good(got, "its handle")) return;
    // Each asks only while the GPU answers.
    for (const auto check : {&Gpu::Ecc, &Gpu::Rows, &Gpu::Pages, &Gpu::Holders, &Gpu::Clocks}) {
      if (!lost_) (this->*check)();
    }
  }

 private:
  // False when there is no answer: the GPU has no such thing, which is fine, or it has failed, which is told.
  bool Good(nvml::Return got, const char* asked) {
    if (got == nvml::kSuccess) return true;
    if (got == nvml::kNotSupported || got == nvml::kNoPermission || got == nvml::kFunctionNotFound ||
        got == nvml::kVersionMismatch) {
      return false;
    }
    lost_ = true;
    findings_.Sick(fmt::format("does not tell {}: {} (NVML error {})", asked, api_.error_string(got),
                               static_cast<int>(got)));
    return false;
  }

  void Ecc() {
    unsigned long long count = 0;
    if (api_.ecc_errors == nullptr ||
        !Good(api_.ecc_errors(device_, nvml::kUncorrected, nvml::kVolatile, &count), "its memory errors")) {
      return;
    }
    if (count > 0)
      findings_.Sick(fmt::format("had {} uncorrectable memory errors since its last reset", count));
  }

  void Rows() {
    unsigned int corrected = 0;
    unsigned int uncorrected = 0;
    unsigned int pending = 0;
    unsigned int failed = 0;
    if (api_.remapped_rows == nullptr ||
        !Good(api_.remapped_rows(device_, &corrected, &uncorrected, &pending, &failed),
              "its remapped rows")) {
      return;
    }
    if (failed != 0) findings_.Sick("could not remap a damaged row of its memory: replace it");
    if (pending != 0) findings_.Sick("has a damaged row of its memory to remap: reset it");
  }

  void Pages() {
    int state = 0;
    if (api_.retired_pending == nullptr ||
        !Good(api_.retired_pending(device_, &state), "its retired pages")) {
      return;
    }
    if (state == nvml::kEnabled) findings_.Sick("has damaged pages of its memory to retire: reset it");
  }

  void Clocks() {
    unsigned long long reasons = 0;
    if (api_.throttle_reasons == nullptr ||
        !Good(api_.throttle_reasons(device_, &reasons), "why its clocks are low")) {
      return;
    }
    if ((reasons & (nvml::kHardwareThermal | nvml::kSoftwareThermal)) != 0) {
      findings_.Warn("runs slowly: it is too hot");
    } else if ((reasons & nvml::kPowerBrake) != 0) {
      findings_.Warn("runs slowly: the power supply asked for it");
    } else if ((reasons & nvml::kHardwareSlowdown) != 0) {
      findings_.Warn("runs slowly: its hardware asked for it");
    }
  }

  // Adds to `pids`; false when it is not told.
  bool Processes(nvml::Return (*list)(nvml::Device, unsigned int*, nvml::Process*),
                 std::vector<unsigned int>* pids) {
    if (list == nullptr) return false;
    std::vector<nvml::Process> processes(64);
    while (true) {
      auto count = static_cast<unsigned int>(processes.size());
      const nvml::Return got = list(device_, &count, processes.data());
      if (got == nvml::kInsufficientSize && processes.size() < kMaxProcesses) {
        processes.resize(processes.size() * 2);
        continue;
      }
      if (!Good(got, "who uses it")) return false;
      for (unsigned int i = 0; i < count && i < processes.size(); ++i) pids->push_back(processes[i].pid);
      return true;
    }
  }

  std::optional<uint64_t> Used() {
    if (api_.memory_v2 != nullptr) {
      nvml::MemoryV2 memory;
      if (Good(api_.memory_v2(device_, &memory), "its memory")) return memory.used;
    }
    nvml::Memory memory;
    if (lost_ || api_.memory == nullptr || !Good(api_.memory(device_, &memory), "its memory"))
      return std::nullopt;
    return memory.used;
  }

  // What is wrong with who holds its memory, or "".
  std::string Unowned() {
    std::vector<unsigned int> pids;
    const bool compute = Processes(api_.compute_processes, &pids);
    const bool graphics = !lost_ && Processes(api_.graphics_processes, &pids);
    if (lost_ || (!compute && !graphics)) return "";
    if (SeesHostProcesses(options_.proc_root)) {
      for (const unsigned int pid : pids) {
        if (!Lives(options_.proc_root, pid)) {
          return fmt::format("is held by process {}, which has ended: reset it", pid);
        }
      }
    }
    const auto used = pids.empty() ? Used() : std::nullopt;
    if (used && *used > options_.gpu_unowned_max_bytes) {
      return fmt::format("has {} MiB of its memory in use by no process: reset it", *used >> 20);
    }
    return "";
  }

  void Holders() {
    // The driver takes its time to free what a killed process held.
    std::string wrong = Unowned();
    while (!wrong.empty() && std::chrono::steady_clock::now() < settled_) {
      std::this_thread::sleep_for(kGpuSettleStep);
      wrong = Unowned();
    }
    if (!wrong.empty()) findings_.Sick(wrong);
  }

  const nvml::Api& api_;
  const HealthOptions& options_;
  Findings& findings_;
  std::chrono::steady_clock::time_point settled_;  // for all GPUs: they are freed at the same time
  nvml::Device device_ = nullptr;
  bool lost_ = false;
};

}  // namespace

void CheckGpus(const HealthOptions& options, Findings& findings) {
  if (options.nvml_library.empty()) return;
  findings.Checking("gpus");
  const Result<nvml::Api> api = nvml::Load(options.nvml_library);
  if (!api) {
    if (api.error().code != Errc::kNotFound) findings.Warn(api.error().message);
    return;  // no driver, no GPUs
  }
  const nvml::Return ready = api->init();
  if (ready != nvml::kSuccess) {
    // The library may be there where no GPU is.
    if (ready == nvml::kDriverNotLoaded && !HasNvidiaGpu(options.sys_root)) return;
    findings.Sick(
        fmt::format("cannot be used: {} (NVML error {})", api->error_string(ready), static_cast<int>(ready)));
    return;
  }
  unsigned int count = 0;
  if (const nvml::Return got = api->count(&count); got != nvml::kSuccess) {
    findings.Sick(fmt::format("cannot be counted: {}", api->error_string(got)));
    return;
  }
  Gpu gpu(*api, options, findings);
  std::vector<uint32_t> indices = options.gpus;
  for (unsigned int i = 0; options.gpus.empty() && i < count; ++i) indices.push_back(i);
  for (const uint32_t index : indices) {
    if (index < count) {
      gpu.Check(index);
    } else {
      findings.Checking(fmt::format("gpu {}", index));
      findings.Sick(fmt::format("is not there: NVML knows {}", count));
    }
  }
}

}  // namespace muster
