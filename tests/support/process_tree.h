// The processes that one has started.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace muster {

// Also those that have ended and that it has not waited for. Needs CONFIG_PROC_CHILDREN.
inline std::vector<pid_t> ChildrenOf(pid_t process) {
  std::vector<pid_t> children;
  std::error_code ended;
  const auto tasks = std::filesystem::path("/proc") / std::to_string(process) / "task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, ended)) {
    std::ifstream file(task.path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

}  // namespace muster
