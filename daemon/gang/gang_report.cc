// What people are told.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "daemon/gang/gang.h"

namespace muster::gang {
namespace {

constexpr size_t kStderrLines = 10;
constexpr size_t kLineBytes = 500;
constexpr size_t kReportLines = 200;
constexpr size_t kNames = 400;  // bytes of a list of nodes

// Indented lines, each bounded: this goes to a terminal.
std::string Quote(const std::string& text, size_t last) {
  std::vector<std::string> lines;
  size_t from = 0;
  while (from < text.size()) {
    const size_t end = std::min(text.find('\n', from), text.size());
    if (end > from) lines.push_back(text.substr(from, std::min(end - from, kLineBytes)));
    from = end + 1;
  }
  std::string quoted;
  for (size_t i = lines.size() > last ? lines.size() - last : 0; i < lines.size(); ++i) {
    quoted += "muster:   | " + lines[i] + "\n";
  }
  return quoted;
}

}  // namespace

std::string SignalName(uint32_t signal) {
  const char* name = sigabbrev_np(static_cast<int>(signal));
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string DescribeStatus(int status, bool oom_killed) {
  if (oom_killed) return "was killed by the kernel's out-of-memory killer (SIGKILL)";
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by {}{}", SignalName(static_cast<uint32_t>(WTERMSIG(status))),
                       WCOREDUMP(status) ? " (core dumped)" : "");
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

std::string Gang::Who(uint32_t task) const {
  const Member& member = members_[task];
  const std::string& host = nodes_[member.node].name;
  return member.rank ? fmt::format("rank {} on {}", *member.rank, host)
                     : fmt::format("task {} on {}", task, host);
}

Fault Gang::MemberFault(uint32_t task, const Exit& exit) const {
  Fault fault{
      .task = task, .from_member = true, .cause = exit.cause, .signature = exit.signature, .exit = exit};
  if (exit.supervisor_lost) {
    fault.what =
        fmt::format("{}: the task was ended from outside (scancel, or its supervisor was killed)", Who(task));
    fault.cause = CauseClass::kInfrastructure;
    fault.signature.clear();
  } else {
    fault.what =
        fmt::format("{} ({}, pid {}) {}", Who(task), exit.program.empty() ? "program unknown" : exit.program,
                    exit.pid, DescribeStatus(exit.status, exit.oom_killed));
    if (!exit.waited_for.empty()) fault.what += "; it waited for others: " + exit.waited_for;
    // The member could not read the checkpoint that this generation began from, or waited for a member that could not.
    if (rejected_) fault.cause = CauseClass::kInfrastructure;
  }
  return fault;
}

// Whose supervisor tells the job of a fault: the one that it is about, or else the first that is there.
uint32_t Gang::Speaker(const Fault& fault) const {
  const auto can = [&](uint32_t task) {
    const Member& member = members_[task];
    const bool lost = member.exit && member.exit->supervisor_lost;
    return member.known && !lost && nodes_[member.node].present;
  };
  if (fault.from_member && fault.task < members_.size() && can(fault.task)) return fault.task;
  for (const uint32_t node : active_) {
    for (const uint32_t task : nodes_[node].tasks) {
      if (can(task)) return task;
    }
  }
  for (uint32_t task = 0; task < members_.size(); ++task) {
    if (can(task)) return task;
  }
  return 0;
}

std::string Gang::ReportText(const Fault& fault) const {
  std::string text = !began_ ? fmt::format("muster: gang {} cannot start: {}\n", settings_.id, fault.what)
                             : fmt::format("muster: gang {}: generation {} ended: {}\n", settings_.id,
                                           generation_, fault.what);
  if (fault.exit.oom_killed)
    text += "muster:   Slurm will call this step OUT_OF_MEMORY even if it goes on well\n";
  if (!fault.exit.facts.empty()) {
    text += "muster:   the kernel of its node said at the time:\n" + Quote(fault.exit.facts, kStderrLines);
  }
  if (!fault.report.empty()) text += Quote(fault.report, kReportLines);
  if (fault.exit.stderr_tail.empty()) return text;
  return text + "muster:   the last lines of its stderr:\n" + Quote(fault.exit.stderr_tail, kStderrLines);
}

std::string Gang::Missing() const {
  std::string text;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].present || nodes_[i].lost) continue;
    text += text.empty() ? "" : ", ";
    text += nodes_[i].name.empty() ? fmt::format("node {} of the step", i) : nodes_[i].name;
    if (text.size() > kNames) return text + ", …";
  }
  return text;
}

// In which order the nodes have their ranks, and what it is worth.
std::string Gang::OrderText() const {
  if (!tree_) return fmt::format("the ranks are in Slurm's order: {}", no_tree_);
  uint64_t crossings = 0;
  uint64_t in_slurms_order = 0;
  uint64_t least = 0;
  for (uint32_t role = 0; role < settings_.roles.size(); ++role) {
    std::vector<uint32_t> ring;
    std::copy_if(active_.begin(), active_.end(), std::back_inserter(ring),
                 [&](uint32_t node) { return RoleIndex(node) == role; });
    crossings += tree_->Crossings(ring);
    least += tree_->LeastCrossings(ring);
    std::sort(ring.begin(), ring.end());
    in_slurms_order += tree_->Crossings(ring);
  }
  std::string names;
  for (const uint32_t node : active_) {
    if (names.size() > kNames) {
      names += ", …";
      break;
    }
    names += (names.empty() ? "" : ", ") + nodes_[node].name;
  }
  return fmt::format(
      "the ranks follow Slurm's topology: {}; a ring over {} crosses {} levels of switches, {} in Slurm's "
      "order, {} at best",
      names, settings_.roles.size() > 1 ? "each role" : "them", crossings, in_slurms_order, least);
}

}  // namespace muster::gang
