// The member's program: forking it, and what must be true in the child before slurmstepd goes on to exec it.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include "base/unique_fd.h"
#include "spank-plugin/supervisor/environment_block.h"
#include "spank-plugin/supervisor/host.h"
#include "spank-plugin/supervisor/signals.h"

namespace muster::supervisor {

inline constexpr int kCannotStart = 125;  // exit code of a child that could not be set up

// The terminal of `srun --pty`, if this task has one.
class Terminal {
 public:
  // Looks at stdin: a terminal whose foreground group this process is in.
  void Open();
  [[nodiscard]] bool valid() const { return fd_.valid(); }
  // Gives the foreground back to this process's group and the settings of the start to the terminal, for the
  // program of the last generation may have been killed in any state.
  void Reset() const;

 private:
  UniqueFd fd_;
  termios settings_{};
};

struct Forked {
  pid_t pid = -1;      // 0 in the child, -1: errno says why
  UniqueFd exec_pipe;  // reads the end when the child has exec'd, or died
};

// Forks. In the child everything is set up for the exec and `exec_pipe` holds the other end, which must stay
// open: the exec closes it.
Forked ForkMember(const Signals& signals, const Terminal& terminal, const EnvironmentBlock& environment,
                  const Host& host, UniqueFd stderr_pipe);

// Replaces stdin of this process by /dev/null: generation 1 has inherited the task's, nobody else may hold
// it.
void ReleaseStdin();

}  // namespace muster::supervisor
