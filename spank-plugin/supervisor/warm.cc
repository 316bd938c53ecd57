// How a standby becomes the program of a generation (warm_start.h).
#include <signal.h>

#include "spank-plugin/supervisor/supervisor.h"

namespace muster::supervisor {

// False: the start is cold.
bool Supervisor::StartWarm(const EnvironmentBlock& block) {
  if (warm_.pid() == 0) return false;
  const pid_t standby = warm_.pid();
  const UniqueFd stderr_pipe = stderr_.NewPipe();
  if (!warm_.Begin(generation_, block, host_, stderr_pipe)) return false;
  child_ = standby;
  state_ = wire::MemberState::kRunning;
  return true;
}

// What has come of it.
bool Supervisor::OnWarm() {
  if (warm_.TakeStarted()) OnExecuted();
  if (!warm_.TakeFailed()) return false;
  // It was killed, or has ended; Reap takes it away as anybody's child.
  child_ = 0;
  if (sweeping_ || leaving_ || terminated_) {
    OnMemberEnd(0, terminated_ ? SIGTERM : SIGKILL);
    return false;
  }
  return StartCold(warm_.environment());
}

}  // namespace muster::supervisor
