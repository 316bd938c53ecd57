#include "daemon/slurm/left_behind.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "base/unique_fd.h"

namespace muster {
namespace {

// Whether one of the entries in /proc/PID/environ is this one; they end with NULs, and may be many.
bool HasVariable(pid_t pid, std::string_view variable) {
  const UniqueFd file(::open(fmt::format("/proc/{}/environ", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return false;
  const std::string entry = '\0' + std::string(variable) + '\0';
  std::string text(1, '\0');  // where the first entry begins
  std::array<char, 16384> block{};
  for (ssize_t size = 1; size > 0;) {
    if (text.find(entry) != std::string::npos) return true;
    if (text.size() > entry.size()) text.erase(0, text.size() - entry.size());
    size = ::read(file.get(), block.data(), block.size());
    if (size > 0) text.append(block.data(), static_cast<size_t>(size));
  }
  return false;
}

enum class Whose { kOthers, kLeft, kUncertain };

class Search {
 public:
  Search(const DeadSupervisors& supervisors, const LocalProcesses& all,
         const std::function<bool(pid_t)>& has_variable)
      : supervisors_(supervisors), all_(all), has_variable_(has_variable) {
    constexpr int64_t kSecondNs = 1'000'000'000;
    const int64_t ticks = std::max(::sysconf(_SC_CLK_TCK), 1L);
    seen_ticks_ = static_cast<uint64_t>(supervisors.seen_ns / (kSecondNs / ticks));
  }

  // A supervisor whose connection has ended may not have come to the end of its own end.
  [[nodiscard]] bool Dying(pid_t pid) const {
    const auto found = all_.find(pid);
    return found != all_.end() && pid != ::getpid() && found->second.began_ticks < seen_ticks_;
  }

  Whose Of(pid_t pid) {
    bool left = false;
    // Bounded: parents may form a ring of reused numbers.
    for (size_t steps = 0; steps <= all_.size(); ++steps) {
      if (supervisors_.alive.contains(pid)) return Whose::kOthers;
      const auto found = all_.find(pid);
      if (found == all_.end()) return !left ? Whose::kOthers : pid > 0 ? Whose::kUncertain : Whose::kLeft;
      const LocalProcess& process = found->second;
      if (HasStepTitle(process, supervisors_.job_id)) {
        // What is below one that is no user's is Slurm's or left behind; another is a supervisor, or will be one.
        if (process.root) return left ? Whose::kLeft : Whose::kOthers;
        return Dying(pid) && supervisors_.dead.contains(pid) && left ? Whose::kUncertain : Whose::kOthers;
      }
      left = left || IsLeft(pid, process);
      pid = process.parent;
    }
    return Whose::kUncertain;
  }

 private:
  bool IsLeft(pid_t pid, const LocalProcess& process) {
    const auto [known, first] = left_.emplace(pid, false);
    if (first) {
      const bool by_cgroup =
          process.began_ticks < seen_ticks_ && InJobCgroup(process, supervisors_.job_id, supervisors_.step);
      const auto before = supervisors_.known.find(pid);
      const bool was_left = before != supervisors_.known.end() && before->second == process.began_ticks;
      known->second = was_left || by_cgroup || has_variable_(pid);
    }
    return known->second;
  }

  const DeadSupervisors& supervisors_;
  const LocalProcesses& all_;
  const std::function<bool(pid_t)>& has_variable_;
  uint64_t seen_ticks_ = 0;
  std::map<pid_t, bool> left_;  // by themselves, not by their parents
};

}  // namespace

LeftBehind FindLeftBehind(const DeadSupervisors& supervisors, const LocalProcesses& all,
                          const std::function<bool(pid_t)>& has_variable) {
  LeftBehind found;
  Search search(supervisors, all, has_variable);
  for (const pid_t pid : supervisors.dead) found.uncertain += search.Dying(pid) ? 1 : 0;
  for (const auto& [pid, process] : all) {
    const Whose whose = search.Of(pid);
    if (whose == Whose::kLeft) found.processes.push_back(pid);
    found.uncertain += whose == Whose::kUncertain ? 1 : 0;
  }
  return found;
}

StillThere KillLeftBehind(const DeadSupervisors& supervisors) {
  const LocalProcesses all = ListLocalProcesses();
  const LeftBehind left = FindLeftBehind(supervisors, all, [&](pid_t pid) {
    return pid != ::getpid() && HasVariable(pid, supervisors.variable);
  });
  StillThere there;
  for (const pid_t pid : left.processes) {
    const LocalProcess& process = all.at(pid);
    there.all_exit &= KillLocalProcess(pid, process) && OnlyExits(pid);
    there.exiting += process.exiting;
    there.known.emplace(pid, process.began_ticks);
  }
  there.all_exit &= left.uncertain == 0;
  there.exiting.count += static_cast<int>(left.uncertain);
  return there;
}

}  // namespace muster
