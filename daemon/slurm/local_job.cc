#include "daemon/slurm/local_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <thread>
#include <vector>

#include "daemon/slurm/local_processes.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kPause{10};

// A user can give any process this title, but not root's identity.
bool IsStepDaemon(const LocalProcess& process, uint32_t job_id) {
  return process.root && HasStepTitle(process, job_id);
}

bool Belongs(const LocalProcesses& all, pid_t pid, uint32_t job_id) {
  // Bounded: parents may form a ring of reused numbers.
  for (size_t steps = 0; steps <= all.size(); ++steps) {
    const auto it = all.find(pid);
    if (it == all.end()) return false;
    if (IsStepDaemon(it->second, job_id) || InJobCgroup(it->second, job_id)) return true;
    pid = it->second.parent;
  }
  return false;
}

}  // namespace

Status EndJobHere(uint32_t job_id, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  // With their beginnings; what was below a slurmstepd stays the job's when that has gone.
  std::map<pid_t, uint64_t> known;
  for (;;) {
    const LocalProcesses all = ListLocalProcesses();
    std::vector<pid_t> daemons;
    std::vector<pid_t> rest;
    for (const auto& [pid, process] : all) {
      if (pid == ::getpid()) continue;
      const auto before = known.find(pid);
      const bool was = before != known.end() && before->second == process.began_ticks;
      if (IsStepDaemon(process, job_id)) {
        daemons.push_back(pid);
      } else if (was || Belongs(all, pid, job_id)) {
        rest.push_back(pid);
      }
    }
    if (daemons.empty() && rest.empty()) return {};
    for (const auto& pids : {daemons, rest}) {
      for (const pid_t pid : pids) KillLocalProcess(pid, all.at(pid));
    }
    known.clear();
    for (const pid_t pid : rest) known.emplace(pid, all.at(pid).began_ticks);
    if (std::chrono::steady_clock::now() > end) {
      std::string left;
      for (const auto& pids : {daemons, rest}) {
        for (const pid_t pid : pids) left += fmt::format(" {} ({})", all.at(pid).name, pid);
      }
      return Error{Errc::kUnavailable,
                   fmt::format("job {} has processes on this node that do not die:{}", job_id, left)};
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace muster
