// Any file given as the configuration: an error with a sentence, or values in their ranges.
#include <cstdlib>

#include "daemon/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = muster::ParseConfig(std::string(reinterpret_cast<const char*>(data), size), "f");
  if (!config) {
    if (config.error().code != muster::Errc::kInvalid || !config.error().message.starts_with("f:"))
      std::abort();
    return 0;
  }
  if (config->port < 1 || config->port > 65535 || config->reconnect_ms < 1000 ||
      config->chunk_bytes < 65536 || config->master_ports_first > config->master_ports_last ||
      config->store.empty()) {
    std::abort();
  }
  return 0;
}
