// The time in which the program of a generation that a fault has ended writes what it knows of the fault. It is a part of being
// stopped: no standby is made, no checkpoint, and how the program ends is no news.
#include <signal.h>

#include "spank-plugin/supervisor/supervisor.h"

namespace muster::supervisor {

bool Supervisor::BeginLastWords(const wire::Stop& stop) {
  if (stop.last_words_ms == 0 || sweeping_ || leaving_ || terminated_ || suspended_) return false;
  if (last_words_.end.IsSet()) return true;
  // A death from before the signal is news.
  Reap();
  if (!ProgramRuns() || !executed_ || child_ <= 0) return false;
  last_words_.began_ms = MonotonicMs();
  last_words_.end.Set(last_words_.began_ms + stop.last_words_ms);
  core_poll_.Clear();
  if (files_.pid() > 0) kill(files_.pid(), SIGKILL);
  last_words_.signal = static_cast<int>(stop.signal);
  last_words_.signal_at.Set(last_words_.began_ms + stop.signal_after_ms);
  if (stop.signal_after_ms == 0) SignalLastWords();
  return true;
}

void Supervisor::SignalLastWords() {
  last_words_.signal_at.Clear();
  if (child_ > 0) kill(terminal_.valid() ? child_ : -child_, last_words_.signal);
}

void Supervisor::EndLastWords() {
  if (!last_words_.end.IsSet()) return;
  last_words_.end.Clear();
  last_words_.signal_at.Clear();
  const int64_t took = MonotonicMs() - last_words_.began_ms;
  last_words_.took_ms = took > 0 ? static_cast<uint32_t>(took) : 1;
}

}  // namespace muster::supervisor
