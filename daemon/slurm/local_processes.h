// What runs on this node, as /proc lists it, and whose it is by Slurm.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/exiting.h"

namespace muster {

struct LocalProcess {
  pid_t parent = 0;
  uint64_t began_ticks = 0;  // since boot: tells it from a later process of its number
  std::string name;
  std::string title;  // its command line, up to the first NUL
  bool root = false;  // its user, real, effective and saved
  std::string cgroups;
  Exiting exiting;  // what is left of the process, once SIGKILL has ended it
};
using LocalProcesses = std::map<pid_t, LocalProcess>;

// All but those that are dead and only wait for their parent. A list is no snapshot: what is forked meanwhile may be missing,
// also though its parent is not listed any more. Reads three files a process, so it is for a worker thread. Thread-safe.
LocalProcesses ListLocalProcesses();

// Sends SIGKILL to the process, but not to a later process with its number. False: the process did not get it. Thread-safe.
bool KillLocalProcess(pid_t pid, const LocalProcess& process);

// Whether no thread of the process runs any more of its program or of a system call. Thread-safe.
bool OnlyExits(pid_t pid);

// "slurmstepd: [12.0]", "slurmstepd: [12.batch]": the title that slurmstepd gives itself, and its forks have until they
// exec. A user can give it to any process.
bool HasStepTitle(const LocalProcess& process, uint32_t job_id);

// Whether it is in Slurm's cgroup below "job_12/", or "job_12/step_0/" with `step`: of its path in one of the hierarchies.
bool InJobCgroup(const LocalProcess& process, uint32_t job_id, std::string_view step = "");

}  // namespace muster
