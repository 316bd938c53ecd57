// What the supervisor needs of the process it lives in. In slurmstepd these are SPANK calls; in tests they
// are the test's own, so that everything here runs without Slurm.
#pragma once

#include <stddef.h>

namespace muster::supervisor {

struct Host {
  void* context = nullptr;
  // These act on the environment that the member's program will be exec'd with. Called in the forked child
  // only.
  bool (*set_environment)(void* context, const char* key, const char* value) = nullptr;
  bool (*unset_environment)(void* context, const char* key) = nullptr;
  // Sets it unless it is set; true in both cases.
  bool (*default_environment)(void* context, const char* key, const char* value) = nullptr;
  // One line for the node's log (not the user's stderr), without a newline.
  void (*log)(void* context, const char* line) = nullptr;
  // Reads a variable of that environment; false when it is not set, or has not `size` bytes with its end.
  bool (*get_environment)(void* context, const char* key, char* value, size_t size) = nullptr;
};

}  // namespace muster::supervisor
