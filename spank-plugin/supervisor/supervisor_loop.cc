// Waiting, timing and the state of the connection.
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "spank-plugin/supervisor/supervisor.h"

namespace muster::supervisor {
namespace {

constexpr int64_t kFirstBackoffMs = 50;
constexpr int64_t kLastBackoffMs = 500;
// A wake-up so much too late means that this process was not running: stopped, frozen, or its machine was.
constexpr int64_t kLateMs = 500;

int Until(int64_t deadline, int64_t now) {
  if (deadline == INT64_MAX) return -1;
  const int64_t left = deadline - now;
  return left <= 0 ? 0 : left > 3'600'000 ? 3'600'000 : static_cast<int>(left);
}

}  // namespace

void Supervisor::Run(UniqueFd socket) {
  socket_ = static_cast<UniqueFd&&>(socket);
  packet_ = static_cast<char*>(malloc(wire::kMaxMessage));
  Prepare();
  if (socket_.valid()) {
    welcome_.Set(MonotonicMs() + settings_.welcome_ms);
  } else {
    Disconnect();
  }
  while (!Step()) {
  }
  free(packet_);
}

int64_t Supervisor::NextDeadline() const {
  int64_t next = INT64_MAX;
  const Deadline* standing[] = {&lease_,     &welcome_,        &fence_at_,
                                &give_up_,   &sweep_end_,      &core_poll_,
                                &drain_end_, &last_words_.end, &last_words_.signal_at};
  const Deadline* always[] = {&redial_, &rescan_, &leave_at_};
  // Of a suspended job only what musterd or a kill needs goes on.
  if (!suspended_) {
    for (const Deadline* d : standing) next = d->at_ms() < next ? d->at_ms() : next;
    next = warm_.deadline() < next ? warm_.deadline() : next;
  }
  for (const Deadline* d : always) next = d->at_ms() < next ? d->at_ms() : next;
  return next;
}

bool Supervisor::Step() {
  Report();
  enum { kSocket, kSignals, kExec, kErrorIn, kErrorOut, kFiles, kWarmListener, kWarm, kCount };
  pollfd wait[kCount] = {};
  wait[kSocket] = {socket_.get(), static_cast<int16_t>(POLLIN | (blocked_ ? POLLOUT : 0)), 0};
  wait[kSignals] = {signals_.fd(), POLLIN, 0};
  wait[kExec] = {exec_pipe_.get(), POLLIN, 0};
  wait[kErrorIn] = {stderr_.in(), POLLIN, 0};
  wait[kErrorOut] = {stderr_.out(), POLLOUT, 0};
  wait[kFiles] = {files_.fd(), POLLIN, 0};
  wait[kWarmListener] = {warm_.listener(), POLLIN, 0};
  wait[kWarm] = {warm_.connection(), POLLIN, 0};
  const int64_t next = NextDeadline();
  int64_t now = MonotonicMs();
  const bool was_due = next <= now;
  if (poll(wait, kCount, Until(next, now)) < 0) return false;
  now = MonotonicMs();
  if (!was_due && next != INT64_MAX && now - next > kLateMs) RestartTimers(now);

  blocked_ = blocked_ && (wait[kSocket].revents & POLLOUT) == 0;
  if (wait[kExec].revents != 0) OnExecPipe();
  if (wait[kErrorIn].revents != 0) stderr_.Read();
  if (wait[kFiles].revents != 0) files_.Read(&stderr_);
  if (wait[kWarm].revents != 0) warm_.OnConnection();
  if (wait[kWarmListener].revents != 0) warm_.OnListener();
  if (OnWarm()) return true;
  if (wait[kSignals].revents != 0) OnSignals();
  if (wait[kErrorOut].revents != 0) stderr_.Write();
  if ((wait[kSocket].revents & ~POLLOUT) != 0 && ReadSocket()) return true;
  OnTimers(MonotonicMs());
  return OnWarm();
}

bool Supervisor::ReadSocket() {
  while (socket_.valid()) {
    Received received = Receive(socket_.get(), packet_, wire::kMaxMessage);
    if (received.what == Received::What::kNothing) return false;
    if (received.what == Received::What::kClosed) {
      Disconnect();
      return false;
    }
    Heard(MonotonicMs());
    resumed_ms_ = 0;
    Message message;
    const char* why = "";
    switch (ParseMessage(packet_, received.size, &message, &why)) {
      case Parsed::kUnknown:
        break;
      case Parsed::kBad:
        Log("musterd sent a packet of %zu bytes that is not understood: %s", received.size, why);
        Disconnect();
        return false;
      case Parsed::kMessage:
        if (TakeMessage(message, static_cast<UniqueFd&&>(received.fd))) return true;
        Report();
        break;
    }
  }
  return false;
}

void Supervisor::Heard(int64_t now) {
  if (lease_ms_ > 0) lease_.Set(now + lease_ms_);
}

// Beats on the page wake nobody: they are looked at when it matters.
bool Supervisor::LeaseIsOver(int64_t now) {
  const int64_t until = beats_.NewestMs() + lease_ms_;
  if (until <= now) return true;
  lease_.Set(until);
  return false;
}

void Supervisor::Disconnect() {
  const int64_t now = MonotonicMs();
  if (beats_.NewestMs() > resumed_ms_) resumed_ms_ = 0;
  socket_.reset();
  welcomed_ = false;
  blocked_ = false;
  if (beats_.Leased()) fence_at_.Clear();
  beats_.Close();
  beat_page_due_ = false;
  lease_.Clear();
  welcome_.Clear();
  // An attempt that failed after connecting goes on with the times that run already.
  if (!disconnected_) {
    disconnected_ = true;
    if (!fence_at_.IsSet()) fence_at_.Set(now + reconnect_ms_);
    give_up_.Set(now + settings_.give_up_ms);
    backoff_ms_ = kFirstBackoffMs;
  }
  redial_.Set(now + backoff_ms_);
}

void Supervisor::Reconnect(int64_t now) {
  redial_.Clear();
  socket_ = Connect(settings_.root_fd, settings_.socket_path);
  if (socket_.valid()) {
    Whereabouts whereabouts;
    if (known_) whereabouts.known = resumed_ms_ != 0 ? wire::Known::kResumed : wire::Known::kReconnecting;
    whereabouts.state = state_;
    whereabouts.generation = generation_;
    whereabouts.child_pid = draining_ != 0 ? draining_ : child_;
    whereabouts.wait_status = wait_status_;
    memcpy(whereabouts.token, token_, sizeof(token_));
    if (SendHello(socket_.get(), settings_.identity, whereabouts) == Sent::kWhole) {
      welcome_.Set(now + settings_.welcome_ms);
      return;
    }
    socket_.reset();
  }
  backoff_ms_ = 2 * backoff_ms_ < kLastBackoffMs ? 2 * backoff_ms_ : kLastBackoffMs;
  redial_.Set(now + backoff_ms_);
}

void Supervisor::RestartTimers(int64_t now) {
  Heard(now);
  if (welcome_.IsSet()) welcome_.Set(now + settings_.welcome_ms);
  if (fence_at_.IsSet()) fence_at_.Set(now + reconnect_ms_);
  if (give_up_.IsSet()) give_up_.Set(now + settings_.give_up_ms);
  if (sweep_end_.IsSet()) {
    watch_.Restart(now);
    sweep_end_.Set(watch_.stuck_at());
  }
  if (drain_end_.IsSet()) drain_end_.Set(now + settings_.drain_ms);
  warm_.RestartTimers(now);
}

void Supervisor::OnTimers(int64_t now) {
  if (redial_.Passed(now)) Reconnect(now);
  if (rescan_.Passed(now)) Rescan(now);
  if (leave_at_.Passed(now)) {
    leave_at_.Clear();
    leaving_ = true;
    Sweep();
  }
  if (suspended_) return;
  if (lease_.Passed(now) && LeaseIsOver(now)) {
    lease_.Clear();
    Fence("musterd has been silent for longer than its lease");
  }
  if (welcome_.Passed(now)) {
    Log("musterd has not answered the hello within %lld ms", static_cast<long long>(settings_.welcome_ms));
    Disconnect();
  }
  if (fence_at_.Passed(now)) {
    fence_at_.Clear();
    if (!beats_.Leased()) Fence("musterd has gone and has not come back in time");
  }
  if (give_up_.Passed(now)) {
    Say("musterd on this node has gone (socket %s) and did not come back; start %s there. This task ends.",
        settings_.socket_path, wire::kUnit);
    give_up_.Clear();
    finish_.as = static_cast<uint32_t>(wire::FinishAs::kCode);
    finish_.code = 1;
    leaving_ = true;
    Sweep();
  }
  if (core_poll_.Passed(now)) LookForCoreDump();
  if (warm_.deadline() <= now) warm_.OnTimers(now, signals_, MayMakeStandby());
  if (drain_end_.Passed(now)) {
    drain_end_.Clear();
    if (files_.pid() > 0) kill(files_.pid(), SIGKILL);
  }
  if (last_words_.signal_at.Passed(now)) SignalLastWords();
  if (last_words_.end.Passed(now)) Sweep();
  if (sweep_end_.Passed(now)) {
    sweep_end_.Clear();
    unkillable_ = static_cast<uint32_t>(children_.Count(Spared()));
    Log("%u processes of generation %llu are still there after SIGKILL, and do not get on with going",
        unkillable_, static_cast<unsigned long long>(generation_));
    if (leaving_) Leave();
    stopped_due_ = stop_asked_;
    stop_asked_ = false;
  }
}

}  // namespace muster::supervisor
