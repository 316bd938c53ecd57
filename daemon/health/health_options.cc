#include "base/small_files.h"
#include "daemon/config/config.h"
#include "daemon/health/check.h"

namespace muster {

HealthOptions HealthOptionsOf(const Config& config) {
  HealthOptions options;
  options.nvml_library = config.nvml_library;
  options.timeout = std::chrono::milliseconds(config.health_timeout_ms);
  options.nics = Words(config.health_nics, ", ");
  options.state_dir = config.state_dir;
  options.disks = Words(config.health_disks, ", ");
  options.memory_min_bytes = static_cast<uint64_t>(config.health_memory_min);
  options.disk_free_percent = static_cast<uint32_t>(config.health_disk_free);
  return options;
}

}  // namespace muster
