// Facts about processes, read through the /proc that was open before any container plugin ran.
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/exiting.h"
#include "base/unique_fd.h"

namespace muster::supervisor {

// The name of the program in `pid`, also when it is a zombie; "" when it cannot be read.
struct ProgramName {
  char text[16] = "";
};
ProgramName NameOf(int proc_fd, pid_t pid);

// Whether the process has exec'd since it was forked; true also for a zombie that had.
bool HasExecuted(int proc_fd, pid_t pid);

// Whether the kernel would write a core for the process: asked once after its exec, for most jobs say no.
bool MayDumpCore(int proc_fd, pid_t pid);

// When the process is writing its core, the wait status that it will have, else 0. The kernel tells nobody
// when a dump begins, so this is asked at intervals.
int CoreDumpStatus(int proc_fd, pid_t pid);

// What a pass over all descendants has found. The children of a process are read when the process has got SIGKILL, and so forks no more.
// The kernel's list may miss a child while another child goes: two passes in a row that find the same have missed nothing.
struct KillPass {
  bool all_exit =
      true;  // each process that was found has got SIGKILL and only exits, and all children were read
  uint64_t found = 0;  // a digest of the processes

  void Found(pid_t parent, pid_t pid) {
    const uint64_t mixed =
        (static_cast<uint64_t>(parent) << 32U | static_cast<uint64_t>(pid)) * 0x9e3779b97f4a7c15U;
    found += mixed ^ (mixed >> 32U);
  }
  bool operator==(const KillPass&) const = default;
};

// The children of this process, which is a subreaper: every descendant becomes one when its parent dies. Only
// this process reaps them, so a listed pid cannot have become another process.
class Children {
 public:
  // False: the kernel does not tell (CONFIG_PROC_CHILDREN).
  bool Open(int proc_fd);
  // Sends SIGKILL to all of them but `spared`, 0: to all; returns how many there were.
  int Kill(pid_t spared) const;
  // Sends SIGKILL to all of them but `spared` and to all that is below them: a process that the kernel does not let go keeps its
  // children, and these run on.
  [[nodiscard]] KillPass KillBelow(int proc_fd, pid_t spared) const;
  // How many there are but `spared`, zombies included. It is exact: the kernel's list is cut off only where a child goes while it
  // is read, and no child goes that this process, the one who reads, has not reaped.
  [[nodiscard]] int Count(pid_t spared) const;
  // What is left of all children but `spared`.
  [[nodiscard]] Exiting Look(int proc_fd, pid_t spared) const;

 private:
  template <typename Each>
  int Visit(pid_t spared, Each each) const;
  UniqueFd list_;
};

// Counts the processes that the kernel's OOM killer took in this process's memory cgroup (v1 or v2).
class OomCounter {
 public:
  void Open(int proc_fd, int cgroups_fd);
  // Whether there was one since the last call (or since Open).
  bool Advanced();

 private:
  [[nodiscard]] long Read() const;
  UniqueFd file_;
  long seen_ = 0;
};

}  // namespace muster::supervisor
