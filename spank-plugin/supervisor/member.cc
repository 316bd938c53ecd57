#include "spank-plugin/supervisor/member.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

namespace muster::supervisor {
namespace {

[[noreturn]] void Fail(const char* what) {
  dprintf(STDERR_FILENO, "muster: cannot start the program: %s: %s\n", what, strerror(errno));
  _exit(kCannotStart);
}

void SetUpChild(pid_t supervisor, const Signals& signals, const Terminal& terminal,
                const EnvironmentBlock& environment, const Host& host, const UniqueFd& stderr_pipe) {
  if (stderr_pipe.valid() && dup2(stderr_pipe.get(), STDERR_FILENO) < 0) Fail("stderr");
  // The supervisor's death must not leave a program behind; if it died before this line it will never tell.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail("PR_SET_PDEATHSIG");
  if (getppid() != supervisor) _exit(kCannotStart);
  if (!terminal.valid() && setpgid(0, 0) != 0) Fail("setpgid");
  if (!environment.Apply(host)) Fail("environment");
  char pid[16];
  snprintf(pid, sizeof(pid), "%d", getpid());
  host.set_environment(host.context, "SLURM_TASK_PID", pid);
  signals.Restore();
}

}  // namespace

void Terminal::Open() {
  if (isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) != getpgrp()) return;
  fd_.reset(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  if (fd_.valid() && tcgetattr(fd_.get(), &settings_) != 0) fd_.reset();
}

void Terminal::Reset() const {
  if (!fd_.valid()) return;
  tcsetpgrp(fd_.get(), getpgrp());
  tcsetattr(fd_.get(), TCSANOW, &settings_);
}

Forked ForkMember(const Signals& signals, const Terminal& terminal, const EnvironmentBlock& environment,
                  const Host& host, UniqueFd stderr_pipe) {
  Forked forked;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return forked;
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  terminal.Reset();
  const pid_t supervisor = getpid();
  forked.pid = fork();
  if (forked.pid == 0) {
    SetUpChild(supervisor, signals, terminal, environment, host, stderr_pipe);
    forked.exec_pipe = static_cast<UniqueFd&&>(writer);
    return forked;
  }
  if (forked.pid > 0) {
    // In both processes, so that a stop right now finds the group.
    if (!terminal.valid()) setpgid(forked.pid, forked.pid);
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    forked.exec_pipe = static_cast<UniqueFd&&>(reader);
  }
  return forked;
}

void ReleaseStdin() {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null.valid()) {
    dup3(null.get(), STDIN_FILENO, 0);
  } else {
    close(STDIN_FILENO);
  }
}

}  // namespace muster::supervisor
