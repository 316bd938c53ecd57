// Any bytes as the value of --gang.
#include <stdint.h>
#include <string.h>

#include <initializer_list>

#include "wire/gang_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::wire::GangOptions options;
  char error[muster::wire::kMaxOptionError] = "";
  const bool good = muster::wire::ParseGangOptions(reinterpret_cast<const char*>(data), size, &options, error,
                                                   sizeof(error));
  // A refusal is explained; what is accepted is within its limits.
  if (!good && error[0] == '\0') __builtin_trap();
  if (good &&
      (options.restarts > 1000 || options.join_seconds < 1 || options.join_seconds > 86400 ||
       options.spares > 1024 || options.min_nodes > 65536 || options.hang_seconds > 86400 ||
       options.startup_seconds > 86400 || (options.hang_off && options.startup_seconds > 0) ||
       options.grace_seconds > 3600 || options.last_words_seconds > 60 ||
       options.last_words_signal > SIGTERM || (options.grow && options.min_nodes == 0) ||
       options.kind > muster::wire::RoleKind::kSidecar || strlen(options.role) > muster::wire::kMaxName ||
       strlen(options.name) > muster::wire::kMaxName || strlen(options.after) > muster::wire::kMaxName ||
       strcmp(options.after, options.role) == 0)) {
    __builtin_trap();
  }
  if (good && options.off != (size == 3 && memcmp(data, "off", size) == 0)) __builtin_trap();
  for (const uint32_t nodes : {0U, 1U, 4U, UINT32_MAX}) {
    if (!good) break;
    error[0] = '\0';
    const bool fits = muster::wire::CheckNodes(options, nodes, error, sizeof(error));
    if (fits != (error[0] == '\0') || (fits && options.spares + options.min_nodes > nodes)) __builtin_trap();
  }
  return 0;
}
