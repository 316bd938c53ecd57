#include "daemon/slurm/local_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kPause{10};
constexpr size_t kMaxFile = 64 << 10;

std::string Read(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> block{};
  ssize_t size = file.valid() ? 1 : -1;
  while (size > 0 && text.size() < kMaxFile) {
    size = ::read(file.get(), block.data(), block.size());
    if (size > 0) text.append(block.data(), static_cast<size_t>(size));
  }
  return text;
}

struct Process {
  pid_t parent = 0;
  std::string start;  // tells it from a later process of its number
  std::string name;
  bool step_daemon = false;  // one of the job's
  bool in_cgroup = false;
};

// "slurmstepd: [12.0]", "slurmstepd: [12.batch]": the title that slurmstepd gives itself.
bool IsStepDaemon(const std::string& title, uint32_t job_id) {
  return title.starts_with(fmt::format("slurmstepd: [{}.", job_id));
}

// Whether a line is "12:pids:/slurm/uid_1000/job_12/step_0", "0::/system.slice/slurmstepd.scope/job_12/step_0/user" or
// their like: Slurm's, and below the job.
bool InCgroupOf(const std::string& cgroups, uint32_t job_id) {
  const std::string component = fmt::format("/job_{}/", job_id);
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    line += '/';
    const size_t job = line.find(component);
    if (job != std::string::npos && line.find("slurm") < job) return true;
  }
  return false;
}

std::optional<Process> ReadProcess(const std::string& directory, uint32_t job_id) {
  Process process;
  const std::string stat = Read(directory + "/stat");  // "12 (a name) S 1 ..."
  const size_t open = stat.find('(');
  const size_t close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 4 >= stat.size())
    return std::nullopt;
  process.name = stat.substr(open + 1, close - open - 1);
  std::istringstream fields(stat.substr(close + 2));
  char state = 0;
  fields >> state >> process.parent;
  constexpr int kBetween = 17;  // proc(5): from ppid, the 4th field, to starttime, the 22nd
  for (int i = 0; i < kBetween; ++i) fields >> process.start;
  fields >> process.start;
  if (state == 'Z' || state == 'X') return std::nullopt;
  // A user can give any process this title, but not root's identity.
  const std::string status = Read(directory + "/status");
  process.step_daemon = IsStepDaemon(Read(directory + "/cmdline"), job_id) &&
                        status.find("\nUid:\t0\t0\t0\t") != std::string::npos;
  process.in_cgroup = InCgroupOf(Read(directory + "/cgroup"), job_id);
  return process;
}

std::map<pid_t, Process> Scan(const std::string& proc, uint32_t job_id) {
  std::map<pid_t, Process> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(proc, error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code != std::errc() || end != name.data() + name.size()) continue;
    if (auto process = ReadProcess(entry.path(), job_id)) found.emplace(pid, std::move(*process));
  }
  return found;
}

bool Belongs(const std::map<pid_t, Process>& all, pid_t pid) {
  // Bounded: a scan is no snapshot, parents may form a ring of reused numbers.
  for (size_t steps = 0; steps <= all.size(); ++steps) {
    const auto it = all.find(pid);
    if (it == all.end()) return false;
    if (it->second.step_daemon || it->second.in_cgroup) return true;
    pid = it->second.parent;
  }
  return false;
}

}  // namespace

Status EndJobHere(uint32_t job_id, std::chrono::milliseconds limit, const std::string& proc) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::map<pid_t, std::string>
      known;  // with their start; what was below a slurmstepd stays the job's when that has gone
  for (;;) {
    const std::map<pid_t, Process> all = Scan(proc, job_id);
    std::vector<pid_t> daemons;
    std::vector<pid_t> rest;
    for (const auto& [pid, process] : all) {
      if (pid == ::getpid()) continue;
      const auto before = known.find(pid);
      const bool was = before != known.end() && before->second == process.start;
      if (process.step_daemon) {
        daemons.push_back(pid);
      } else if (was || Belongs(all, pid)) {
        rest.push_back(pid);
      }
    }
    if (daemons.empty() && rest.empty()) return {};
    for (const pid_t pid : daemons) ::kill(pid, SIGKILL);
    for (const pid_t pid : rest) ::kill(pid, SIGKILL);
    known.clear();
    for (const pid_t pid : rest) known.emplace(pid, all.at(pid).start);
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
