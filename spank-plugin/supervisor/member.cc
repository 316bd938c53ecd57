#include "spank-plugin/supervisor/member.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "spank-plugin/supervisor/supervisor_message.h"

namespace muster::supervisor {
namespace {

constexpr int kCannotStart = 125;  // exit code of a child that could not be set up

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

EnvironmentBlock::~EnvironmentBlock() {
  free(bytes_);
}

bool EnvironmentBlock::Read(int fd, size_t size) {
  free(bytes_);
  bytes_ = static_cast<char*>(malloc(size + 1));
  size_ = 0;
  if (bytes_ == nullptr) return false;
  while (size_ < size) {
    const ssize_t got = pread(fd, bytes_ + size_, size - size_, static_cast<off_t>(size_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    size_ += static_cast<size_t>(got);
  }
  return IsEnvironment(bytes_, size_);
}

bool EnvironmentBlock::Apply(const Host& host) const {
  for (size_t at = 0; at < size_;) {
    char* entry = bytes_ + at;
    at += strlen(entry) + 1;
    char* equals = strchr(entry, '=');
    bool good = false;
    if (equals == nullptr) {
      good = host.unset_environment(host.context, entry);
    } else {
      const bool if_unset = equals > entry && equals[-1] == '?';
      char* end = if_unset ? equals - 1 : equals;
      const char first = *end;
      *end = '\0';
      const auto set = if_unset ? host.default_environment : host.set_environment;
      good = set(host.context, entry, equals + 1);
      *end = first;
    }
    if (!good) {
      errno = EINVAL;
      return false;
    }
  }
  return true;
}

const char* EnvironmentBlock::Next(const char* entry) const {
  const char* next = entry == nullptr ? bytes_ : entry + strlen(entry) + 1;
  return next != nullptr && next < bytes_ + size_ ? next : nullptr;
}

const char* EnvironmentBlock::Find(const char* key) const {
  const size_t size = strlen(key);
  for (const char* entry = Next(nullptr); entry != nullptr; entry = Next(entry)) {
    if (strncmp(entry, key, size) == 0 && entry[size] == '=') return entry + size + 1;
  }
  return nullptr;
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
