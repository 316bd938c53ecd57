#include "spank-plugin/supervisor/signals.h"

#include <errno.h>
#include <sys/resource.h>

namespace muster::supervisor {

bool Signals::Open() {
  sigset_t all;
  sigfillset(&all);
  if (sigprocmask(SIG_SETMASK, &all, &before_) != 0) return false;
  fd_.reset(signalfd(-1, &all, SFD_NONBLOCK | SFD_CLOEXEC));
  if (fd_.valid()) return true;
  const int saved = errno;
  Restore();
  errno = saved;
  return false;
}

bool Signals::Next(signalfd_siginfo* info) const {
  return read(fd_.get(), info, sizeof(*info)) == static_cast<ssize_t>(sizeof(*info));
}

void RaiseAsDefault(int number) {
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(number, &action, nullptr);
  kill(getpid(), number);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
}

}  // namespace muster::supervisor
