// A process of Muster's own in the task, beside the program or before it: muster-files, and what measures the links.
#pragma once

#include <sys/types.h>

#include "spank-plugin/supervisor/member.h"

namespace muster::supervisor {

inline constexpr int kHelperFds = 5;

// Forks, and executes a program of the host as a process that nothing but its descriptors connects with others.
struct SpawnHelper {
  int root_fd = -1;  // "/" of the host: where the program is, also when this is a container
  const char* program = "";
  const char* const* arguments = nullptr;
  // Made in the child, from `block`, which may be null; nullptr: there is no memory.
  char** (*environment)(const EnvironmentBlock* block) = nullptr;
  const EnvironmentBlock* block = nullptr;
  int descriptors[kHelperFds] = {-1, -1, -1, -1,
                                 -1};  // what become 0 to 4; -1: /dev/null for the first three, else none
  int failed = -1;                     // one of those; where a sentence goes if it cannot be executed
  const char* before = "";             // that sentence
  bool with_libraries = false;         // it needs the host's: a container may have none of them

  // -1: errno says why.
  [[nodiscard]] pid_t Run() const;
};

}  // namespace muster::supervisor
