// What this host is called.
#pragma once

#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <string>

namespace muster {

// Slurm's name of the node in a task of Slurm's, else the host's; empty when it has none.
[[nodiscard]] inline std::string OwnName() {
  if (const char* node = std::getenv("SLURMD_NODENAME"); node != nullptr && *node != '\0') return node;
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace muster
