// Whether Slurm has suspended a task.
#pragma once

#include <sys/types.h>

#include <string>

namespace muster::hang {

// Slurm suspends a step by stopping or freezing all of its processes: true while `supervisor`, which is never so otherwise
// for longer than a moment, is stopped, or frozen by a cgroup of either version. False when there is no such process.
// Blocks for no longer than reading three files of the kernel's takes. Thread-safe.
bool IsSuspended(pid_t supervisor, const std::string& proc = "/proc",
                 const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace muster::hang
