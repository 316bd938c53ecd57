// The end of a program whose directories are checkpoints (files_process.h).
#include "spank-plugin/supervisor/supervisor.h"

namespace muster::supervisor {

// A program that has done its work is not reported as ended before its last directory is a checkpoint: the gang might be
// over with that. One that has failed is: what it closed last is lost, and all start again at once.
bool Supervisor::BeginDrain(pid_t pid, int wait_status) {
  if (files_.pid() == 0 || !executed_ || wait_status != 0 || Stopping()) return false;
  draining_ = pid;
  core_poll_.Clear();
  files_.Drain();
  drain_end_.Set(MonotonicMs() + settings_.drain_ms);
  return true;
}

void Supervisor::EndDrain(int wait_status) {
  if (draining_ == 0) return;
  const pid_t pid = draining_;
  draining_ = 0;
  drain_end_.Clear();
  OnMemberEnd(pid, wait_status);
}

void Supervisor::OnFilesEnd(int wait_status) {
  files_.Read(&stderr_);
  files_.Gone();
  if (Stopping()) return;
  if (draining_ != 0) {
    if (wait_status != 0)
      Say("muster-files was killed: what the program has closed last may be no checkpoint");
    return EndDrain(0);
  }
  // Before the program runs, its own process says it.
  if (executed_)
    Say("muster-files was killed: from now on directories of this generation are no checkpoints");
}

}  // namespace muster::supervisor
