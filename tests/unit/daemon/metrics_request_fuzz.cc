// What asks for metrics, as anybody may send it: answered, or refused with a reason.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "daemon/metrics/metrics_port.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view request(reinterpret_cast<const char*>(data), size);
  const int status = muster::StatusOfRequest(request);
  if (status == 200 ? !request.starts_with("GET /metrics") : status != 400 && status != 404 && status != 405)
    std::abort();
  return 0;
}
