// Every signal that reaches the supervisor, as a stream. All are blocked, so that none can end it and none is
// lost; the member's child gets back the mask the task had.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include "base/unique_fd.h"

namespace muster::supervisor {

class Signals {
 public:
  // Blocks all signals. False: errno says why; nothing has changed then.
  bool Open();
  // In the child: the mask of before Open.
  void Restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  // The next signal, without waiting; false when there is none.
  bool Next(signalfd_siginfo* info) const;

 private:
  UniqueFd fd_;
  sigset_t before_{};
};

// Whether a signal was sent by a process on purpose (kill, sigqueue), and not by the kernel. Under a pseudo
// terminal the kernel sends Ctrl-C and the like to the whole foreground group, where the member's program has
// it already.
inline bool SentByProcess(const signalfd_siginfo& info) {
  return info.ssi_code <= 0;
}

// Ends this process as `signal` would have ended the program, without leaving a core. Returns when it cannot.
void RaiseAsDefault(int signal);

}  // namespace muster::supervisor
