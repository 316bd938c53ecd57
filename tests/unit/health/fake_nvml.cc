// A library with NVML's functions and a behaviour out of a file: MUSTER_FAKE_NVML names it. Lines:
//   init ERROR              what nvmlInit_v2 returns
//   count N                 GPUs
//   GPU KEY VALUE           KEY: handle, ecc (errors), rows (1 pending, 2 failed), pages (1 pending), processes
//                           (pids between commas; "7*100": a hundred times), memory (bytes), clocks (reasons' bits);
//                           VALUE: that number, "error N", "hang" (never returns) or "crash"
// Without a line for it a GPU has nothing wrong.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/health/nvml.h"

namespace {

using muster::nvml::Memory;
using muster::nvml::MemoryV2;
using muster::nvml::Process;
using Device = size_t*;

std::array<size_t, 64> indices;

std::string Setting(const std::string& first, const std::string& second = "") {
  const char* const path = std::getenv("MUSTER_FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string one;
    std::string two;
    words >> one;
    if (one != first) continue;
    if (!second.empty() && (!(words >> two) || two != second)) continue;
    std::string rest;
    std::getline(words >> std::ws, rest);
    return rest;
  }
  return "";
}

// 0 and *value (0 without a setting), or the error.
int Ask(Device device, const char* key, unsigned long long* value) {
  const std::string setting = Setting(std::to_string(*device), key);
  *value = 0;
  if (setting == "hang") {
    while (true) ::pause();
  }
  if (setting == "crash") std::abort();
  if (setting.starts_with("error ")) return std::stoi(setting.substr(6));
  if (!setting.empty()) *value = std::stoull(setting);
  return 0;
}

int AskInto(Device device, const char* key, unsigned int* value) {
  unsigned long long wide = 0;
  const int error = Ask(device, key, &wide);
  *value = static_cast<unsigned int>(wide);
  return error;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const std::string error = Setting("init");
  return error.empty() ? 0 : std::stoi(error);
}
const char* nvmlErrorString(int error) {
  return error == 15 ? "GPU is lost" : "something is wrong";
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  const std::string setting = Setting("count");
  *count = setting.empty() ? 1 : static_cast<unsigned int>(std::stoul(setting));
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  indices.at(index) = index;
  *device = &indices.at(index);
  unsigned long long value = 0;
  return Ask(*device, "handle", &value);
}
int nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, unsigned long long* count) {
  // Corrected ones, and those of the GPU's whole life, are many.
  if (type != muster::nvml::kUncorrected || counter != muster::nvml::kVolatile) {
    *count = 1'000;
    return 0;
  }
  return Ask(device, "ecc", count);
}
int nvmlDeviceGetRemappedRows(Device device, unsigned int* corrected, unsigned int* uncorrected,
                              unsigned int* pending, unsigned int* failed) {
  *corrected = 3;
  *uncorrected = 2;
  *failed = 0;
  const int error = AskInto(device, "rows", pending);
  if (*pending == 2) {
    *pending = 0;
    *failed = 1;
  }
  return error;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned int* state) {
  return AskInto(device, "pages", state);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int* count, Process* processes) {
  std::string setting = Setting(std::to_string(*device), "processes");
  std::vector<unsigned int> pids;
  for (std::istringstream parts(setting); std::getline(parts, setting, ',');) {
    // "1*100": a hundred of them.
    const size_t times = setting.find('*');
    const size_t many = times == std::string::npos ? 1 : std::stoul(setting.substr(times + 1));
    pids.insert(pids.end(), many, static_cast<unsigned int>(std::stoul(setting)));
  }
  const size_t room = *count;
  *count = static_cast<unsigned int>(pids.size());
  if (pids.size() > room) return muster::nvml::kInsufficientSize;
  for (size_t i = 0; i < pids.size(); ++i) processes[i].pid = pids[i];
  return 0;
}
int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  memory->used = 0;
  return Ask(device, "memory", &memory->used);
}
int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* memory) {
  if (memory->version != (sizeof(MemoryV2) | 2U << 24)) return muster::nvml::kVersionMismatch;
  memory->used = 0;
  return Ask(device, "memory", &memory->used);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* reasons) {
  return Ask(device, "clocks", reasons);
}
}
