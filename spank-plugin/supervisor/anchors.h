// Descriptors taken while the task still sees the node's own file systems. A container plugin may change the
// mount namespace before the supervisor starts; /proc, the cgroups and musterd's socket are reached through
// these.
#pragma once

#include "base/unique_fd.h"

namespace muster::supervisor {

struct Anchors {
  UniqueFd root;     // "/"
  UniqueFd proc;     // "/proc"
  UniqueFd cgroups;  // "/sys/fs/cgroup"; not valid where there is none
};

// Opens all of them; proc is valid if the supervisor can work at all.
Anchors OpenAnchors();

// Turns every pipe, socket and terminal above stderr that exec would have closed into /dev/null. slurmstepd
// forks a task with the stdio of its siblings and its own ends of the pipes; natively the exec closes them at
// once, but the supervisor does not exec, and would keep every reader of them from seeing the end. They are
// replaced, not closed, because the member's child goes on in slurmstepd's code, which may still write a log
// to such a number. `keep` (n descriptors) are left alone.
void ReleaseInherited(int proc_fd, const int* keep, int n);

}  // namespace muster::supervisor
