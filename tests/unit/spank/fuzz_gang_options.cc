// Any bytes as the value of --gang.
#include <stdint.h>
#include <string.h>

#include "daemon/wire/gang_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::wire::GangOptions options;
  char error[512] = "";
  const bool good = muster::wire::ParseGangOptions(reinterpret_cast<const char*>(data), size, &options, error,
                                                   sizeof(error));
  // A refusal is explained; what is accepted is within its limits.
  if (!good && error[0] == '\0') __builtin_trap();
  if (good &&
      (options.restarts > 1000 || options.join_seconds < 1 || options.join_seconds > 86400 ||
       strlen(options.role) > muster::wire::kMaxName || strlen(options.name) > muster::wire::kMaxName)) {
    __builtin_trap();
  }
  return 0;
}
