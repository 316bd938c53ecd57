// Processes and threads as /proc tells of them. Reads only; everything in it may change or go at any moment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::capture {

struct Stat {
  std::string name;
  char state = '?';
  pid_t parent = 0;
  uint64_t start_ticks = 0;  // with the pid, what makes a process itself
};

// The first `limit` bytes of a file; "" when it cannot be read.
std::string ReadText(const std::string& path, size_t limit = 64 * 1024);

// Of a process, or with "PID/task/TID" of a thread.
std::optional<Stat> ReadStat(const std::string& process);

// Everything below `root`, parents before children, `root` not among them; at most `limit`.
std::vector<pid_t> Descendants(pid_t root, size_t limit);
// Whether `pid` is below `root` now.
bool IsBelow(pid_t pid, pid_t root);

std::vector<pid_t> Threads(pid_t pid, size_t limit);

struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
  bool uniform = false;  // real, effective and saved are the same
};
std::optional<Owner> OwnerOf(pid_t pid);

// Its arguments in one line of printable characters, cut to fit.
std::string CommandLine(pid_t pid, size_t limit);

}  // namespace muster::capture
