#include "spank-plugin/front_end.h"

#include <stdlib.h>

// Weak: slurmstepd, which has no such options, loads the plugin too.
extern "C" {
__attribute__((weak)) extern char opt;
__attribute__((weak)) bool slurm_option_isset(void* options, const char* name);
__attribute__((weak)) bool slurm_option_set_by_cli(void* options, int letter);
__attribute__((weak)) char* slurm_option_get(void* options, const char* name);
__attribute__((weak)) int slurm_option_set(void* options, const char* name, const char* value, bool early);
}

namespace muster::plugin::front_end {

bool Readable() {
  return &opt != nullptr && slurm_option_isset != nullptr && slurm_option_get != nullptr &&
         slurm_option_set != nullptr;
}

bool IsSet(const char* name) {
  return Readable() && slurm_option_isset(&opt, name);
}

bool IsGiven(char letter) {
  return Readable() && slurm_option_set_by_cli != nullptr && slurm_option_set_by_cli(&opt, letter);
}

const char* Get(const char* name) {
  return Readable() ? slurm_option_get(&opt, name) : nullptr;
}

bool Set(const char* name, const char* value) {
  return Readable() && slurm_option_set(&opt, name, value, false) == 0;
}

uint32_t NodesAskedFor() {
  const char* text = IsSet("nodes") ? Get("nodes") : nullptr;  // "4" or "2-4"
  if (text == nullptr) return 0;
  char* end = nullptr;
  unsigned long nodes = strtoul(text, &end, 10);
  if (*end == '-') {
    const unsigned long most = strtoul(end + 1, &end, 10);
    if (most > nodes) nodes = most;
  }
  return *end == '\0' && nodes <= UINT32_MAX ? static_cast<uint32_t>(nodes) : 0;
}

}  // namespace muster::plugin::front_end
