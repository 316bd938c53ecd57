#include "daemon/health/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace muster::nvml {

Result<Api> Load(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Error{Errc::kNotFound, ::dlerror()};
  Api api;
  const auto find = [&](auto* function, std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      if (*function == nullptr) {
        *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, name));
      }
    }
  };
  find(&api.init, {"nvmlInit_v2"});
  find(&api.error_string, {"nvmlErrorString"});
  find(&api.count, {"nvmlDeviceGetCount_v2"});
  find(&api.by_index, {"nvmlDeviceGetHandleByIndex_v2"});
  find(&api.ecc_errors, {"nvmlDeviceGetTotalEccErrors"});
  find(&api.remapped_rows, {"nvmlDeviceGetRemappedRows"});
  find(&api.retired_pending, {"nvmlDeviceGetRetiredPagesPendingStatus"});
  find(&api.compute_processes,
       {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  find(&api.graphics_processes,
       {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"});
  find(&api.memory, {"nvmlDeviceGetMemoryInfo"});
  find(&api.memory_v2, {"nvmlDeviceGetMemoryInfo_v2"});
  find(&api.throttle_reasons,
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  if (api.init == nullptr || api.error_string == nullptr || api.count == nullptr || api.by_index == nullptr) {
    return Error{Errc::kInvalid, fmt::format("{} is not NVML: it lacks its functions", library)};
  }
  return api;
}

}  // namespace muster::nvml
