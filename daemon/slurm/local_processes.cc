#include "daemon/slurm/local_processes.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <optional>
#include <sstream>

#include "base/small_files.h"
#include "base/unique_fd.h"

namespace muster {
namespace {

// "12 (a name) S 1 ...": proc(5).
std::optional<LocalProcess> ReadStat(const std::string& directory) {
  const std::string stat = ReadSmallFile(directory + "/stat").value_or("");
  const size_t open = stat.find('(');
  const size_t close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 4 >= stat.size())
    return std::nullopt;
  LocalProcess process;
  process.name = stat.substr(open + 1, close - open - 1);
  std::istringstream fields(stat.substr(close + 2));
  char state = 0;
  fields >> state >> process.parent;
  constexpr int kToThreads = 15;  // from the 4th field, ppid, to the 20th
  std::string skipped;
  for (int i = 0; i < kToThreads; ++i) fields >> skipped;
  int threads = 0;
  fields >> threads >> skipped >> process.began_ticks;
  // The first thread of a process may have ended before the others.
  if (!fields || state == 'X' || (state == 'Z' && threads <= 1)) return std::nullopt;
  process.exiting.Add(stat.c_str());
  return process;
}

std::string DirectoryOf(pid_t pid) {
  return fmt::format("/proc/{}", pid);
}

}  // namespace

LocalProcesses ListLocalProcesses() {
  LocalProcesses found;
  for (const std::string& name : ListDirectory("/proc")) {
    pid_t pid = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code != std::errc() || end != name.data() + name.size()) continue;
    const std::string directory = DirectoryOf(pid);
    auto process = ReadStat(directory);
    if (!process) continue;
    process->title = ReadSmallFile(directory + "/cmdline").value_or("").c_str();
    process->root =
        ReadSmallFile(directory + "/status").value_or("").find("\nUid:\t0\t0\t0\t") != std::string::npos;
    process->cgroups = ReadSmallFile(directory + "/cgroup").value_or("");
    found.emplace(pid, *std::move(process));
  }
  return found;
}

bool KillLocalProcess(pid_t pid, const LocalProcess& process) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!handle.valid()) return false;
  // What the handle is of is the process that has this beginning, or one that came after it.
  const auto now = ReadStat(DirectoryOf(pid));
  return now && now->began_ticks == process.began_ticks &&
         ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0) == 0;
}

bool OnlyExits(pid_t pid) {
  const std::string threads = DirectoryOf(pid) + "/task";
  const std::vector<std::string> names = ListDirectory(threads);
  return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& thread) {
    return OnlyExits(ReadSmallFile(fmt::format("{}/{}/stat", threads, thread)).value_or("").c_str());
  });
}

bool HasStepTitle(const LocalProcess& process, uint32_t job_id) {
  return process.title.starts_with(fmt::format("slurmstepd: [{}.", job_id));
}

// Lines are "12:pids:/slurm/uid_1000/job_12/step_0", "0::/system.slice/slurmstepd.scope/job_12/step_0/user" or their like.
bool InJobCgroup(const LocalProcess& process, uint32_t job_id, std::string_view step) {
  const std::string component =
      step.empty() ? fmt::format("/job_{}/", job_id) : fmt::format("/job_{}/step_{}/", job_id, step);
  std::istringstream lines(process.cgroups);
  for (std::string line; std::getline(lines, line);) {
    line += '/';
    const size_t job = line.find(component);
    if (job != std::string::npos && line.find("slurm") < job) return true;
  }
  return false;
}

}  // namespace muster
