// What a supervisor that was killed leaves behind. Its program dies with it (PDEATHSIG); what that has forked does not, nor a
// program that was exec'd with another identity.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/exiting.h"
#include "daemon/slurm/local_processes.h"

namespace muster {

struct DeadSupervisors {
  uint32_t job_id = 0;
  std::string step;       // as Slurm's cgroups name it: "0"
  std::string variable;   // of their programs' environments, and of no other's: "MUSTER_TOKEN=..."
  std::set<pid_t> dead;   // the supervisors
  std::set<pid_t> alive;  // the step's others here: what is below these is theirs
  int64_t seen_ns = 0;    // CLOCK_BOOTTIME, when the last of them was found dead
  // Processes that were found to be left behind, and when they began (LocalProcess): the variables of a process go before it does.
  std::map<pid_t, uint64_t> known;
};

// Which of the processes are left behind: those that have the variable, those in the step's cgroup that had begun by then (a
// TaskEpilog had not), and all below them. Pure. `has_variable` is asked about processes of `all`.
struct LeftBehind {
  std::vector<pid_t> processes;
  // Whose they are is not certain at this moment: a parent is not in the list, or a supervisor is still dying.
  size_t uncertain = 0;
};
LeftBehind FindLeftBehind(const DeadSupervisors& supervisors, const LocalProcesses& all,
                          const std::function<bool(pid_t)>& has_variable);

struct StillThere {
  Exiting exiting;                  // its count has uncertain processes too
  std::map<pid_t, uint64_t> known;  // see DeadSupervisors
  bool all_exit = true;             // each of them has got SIGKILL and only exits
};
// Sends SIGKILL to them, once. Gives what was there: a list is no snapshot, so that nothing is left when the count was 0 twice.
// Blocks, as it reads four files a process: for a worker thread. Needs root and CAP_KILL, and CAP_SYS_PTRACE for environments.
StillThere KillLeftBehind(const DeadSupervisors& supervisors);

}  // namespace muster
