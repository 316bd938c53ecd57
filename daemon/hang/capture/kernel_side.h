// Where the kernel has each thread of a process: what is known even of threads that cannot be stopped.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace muster::capture {

// Threads with the same state, wait channel, system call and kernel stack together:
// [{"threads": [tid...], "name", "state", "wait", "call", "stack": [function...]}], the first thread's group first.
nlohmann::json KernelSide(pid_t pid, const std::vector<pid_t>& threads);

}  // namespace muster::capture
