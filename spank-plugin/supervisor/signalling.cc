// What Slurm, the user and the terminal send to the task reaches the supervisor first.
#include <signal.h>

#include "spank-plugin/supervisor/supervisor.h"

namespace muster::supervisor {

void Supervisor::OnSignals() {
  bool child_changed = false;
  signalfd_siginfo info{};
  while (signals_.Next(&info)) {
    if (info.ssi_signo == SIGCHLD && !SentByProcess(info)) {
      child_changed = true;
    } else {
      OnSignal(info);
    }
  }
  if (child_changed) Reap();
}

void Supervisor::OnSignal(const signalfd_siginfo& info) {
  const auto sender = static_cast<pid_t>(info.ssi_pid);
  // What the kernel sends is for this process alone, or was sent to the whole foreground group of the
  // terminal.
  if (!SentByProcess(info)) return;
  // A program that signals its parent means slurmstepd, which ignores that. It is not to be told its own
  // words.
  if (sender == getpid() || (child_ > 0 && sender == child_)) return;
  const auto signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGTSTP) suspended_ = true;
  if (signal == SIGCONT) {
    const int64_t now = MonotonicMs();
    if (suspended_) resumed_ms_ = now;
    suspended_ = false;
    RestartTimers(now);
  }
  if (signal == settings_.warn_signal && signal != SIGTERM) Tell(signal);
  if (signal == SIGTERM) {
    OnTerminate();
  } else {
    Forward(signal);
  }
}

void Supervisor::Tell(int signal) {
  signalled_ = signal;
  signalled_due_ = true;
}

void Supervisor::Forward(int signal) {
  if (ProgramRuns() && executed_) {
    if (settings_.forward_signals && child_ > 0) kill(child_, signal);
  } else if (signal != SIGCONT && signal != SIGTSTP) {
    // Between two generations, or just before the exec: it is for the program, which has not been there yet.
    sigaddset(&held_, signal);
  }
}

void Supervisor::ForwardHeld() {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (sigismember(&held_, signal) == 1) kill(child_, signal);
  }
  sigemptyset(&held_);
}

// scancel, the time limit or preemption, and SIGKILL follows after KillWait; or the warning that the job wants before its end. The
// program may save its work and end; nothing is started any more.
void Supervisor::OnTerminate() {
  Tell(SIGTERM);  // each: the next one may be a cancel
  terminated_ = true;
  warm_.End();
  if (ProgramRuns()) {
    if (settings_.forward_signals && child_ > 0) kill(child_, SIGTERM);
    return;
  }
  // The coordinator asks Slurm, and has the job requeued before this task may end.
  if (settings_.warn_signal == SIGTERM) return;
  if (!leaving_) gone_by_term_ = true;
  leaving_ = true;
  Sweep();
}

}  // namespace muster::supervisor
