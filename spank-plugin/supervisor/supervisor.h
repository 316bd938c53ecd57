// The supervisor: stays in a task's place while its program is killed and started again on musterd's word.
// One thread, one poll loop; nothing in it sleeps or blocks but that poll.
//
// supervisor.cc decides (musterd's messages, deaths, what is reported when). last_words.cc gives a program that is stopped its time to
// speak. drain.cc says when a program that has ended with 0 counts as ended. warm.cc makes a standby the program. supervisor_loop.cc
// waits and times, signalling.cc handles Slurm's signals.
#pragma once

#include <stdint.h>
#include <sys/signalfd.h>

#include "base/unique_fd.h"
#include "spank-plugin/supervisor/beat_page.h"
#include "spank-plugin/supervisor/files_process.h"
#include "spank-plugin/supervisor/host.h"
#include "spank-plugin/supervisor/links_process.h"
#include "spank-plugin/supervisor/member.h"
#include "spank-plugin/supervisor/process_facts.h"
#include "spank-plugin/supervisor/signals.h"
#include "spank-plugin/supervisor/stderr_relay.h"
#include "spank-plugin/supervisor/supervisor_clock.h"
#include "spank-plugin/supervisor/supervisor_connection.h"
#include "spank-plugin/supervisor/supervisor_message.h"
#include "spank-plugin/supervisor/warm_start.h"
#include "wire/wire.h"

namespace muster::supervisor {

struct Settings {
  const char* socket_path = wire::kDefaultSocket;
  int root_fd = -1;  // see Anchors; these stay the caller's
  int proc_fd = -1;
  int cgroups_fd = -1;
  Identity identity;
  // Whether Slurm's signals reach this process only (proctrack/cgroup), and so must be passed on.
  bool forward_signals = true;
  // The signal that the job wants before its end, and how many seconds before (--signal); 0: none.
  int warn_signal = 0;
  uint32_t warn_seconds = 0;
  // Times, in milliseconds. Tests shorten them.
  int64_t welcome_ms = 10'000;   // for musterd to answer a hello
  int64_t give_up_ms = 300'000;  // without musterd until the task fails
  int64_t leave_ms = 2'000;      // after SIGTERM and the program's end, for musterd's Finish
  int64_t exiting_ms = 2'000;    // after SIGKILL, until musterd is told that what is left only exits
  int64_t core_poll_ms = 500;    // between two looks for a core dump in progress
  int64_t drain_ms = 600'000;    // after the program's end, until its last directory is a checkpoint
  int64_t remove_ms = 10'000;    // at the end, for removing that directory
  const char* const* arguments =
      nullptr;  // what Slurm executes as the program, nullptr at the end; nullptr: not known
  WarmSettings warm;
};

// The time that a program which is being stopped has to speak.
struct LastWords {
  Deadline end;  // set: it may now
  Deadline signal_at;
  int signal = 0;
  int64_t began_ms = 0;
  uint32_t took_ms = 0;  // in the end; 0: it had none
};

class Supervisor {
 public:
  Supervisor(const Settings& settings, const Host& host) : settings_(settings), host_(host) {}

  // Runs until the gang is over and then ends the process: it returns only in the child that is to exec the
  // program, where the caller destroys this object and returns to slurmstepd. `socket` is connected and the
  // hello was sent on it.
  void Run(UniqueFd socket);

 private:
  // supervisor.cc
  void Prepare();
  bool TakeMessage(const Message& message, UniqueFd fd);  // true in a new child
  void OnWelcome(const wire::Welcome& welcome);
  bool OnStart(const wire::Start& start, UniqueFd environment);  // true in a new child
  void NameLauncher();
  void NameOwn(const EnvironmentBlock& block);
  bool StartCold(const EnvironmentBlock& block);  // true in a new child
  void OnStop(const wire::Stop& stop);
  void OnFinish(const wire::Finish& finish);
  void OnRefused(const Message& message);
  void OnBeatPage(const UniqueFd& memory);
  void OnExecPipe();
  void OnExecuted();
  void Reap();
  void OnMemberEnd(pid_t pid, int wait_status);
  void LookForCoreDump();
  void Fence(const char* why);
  void Sweep();
  void BeginWatch(int64_t now);
  void Rescan(int64_t now);
  void OnSwept();
  void Report();
  void Say(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void Log(const char* format, ...) __attribute__((format(printf, 2, 3)));
  [[noreturn]] void Leave();

  // last_words.cc
  bool BeginLastWords(const wire::Stop& stop);  // whether Sweep is to wait
  void SignalLastWords();
  void EndLastWords();
  [[nodiscard]] bool Stopping() const { return sweeping_ || last_words_.end.IsSet(); }

  // drain.cc
  bool BeginDrain(pid_t pid, int wait_status);  // whether OnMemberEnd is to wait for EndDrain
  void EndDrain(int wait_status);
  void OnFilesEnd(int wait_status);

  // warm.cc
  bool StartWarm(const EnvironmentBlock& block);
  bool OnWarm();  // true in a new child
  [[nodiscard]] bool MayMakeStandby() const {
    return ProgramRuns() && executed_ && !Stopping() && !leaving_ && !terminated_;
  }
  [[nodiscard]] pid_t Spared() const { return leaving_ ? 0 : warm_.pid(); }

  // supervisor_loop.cc
  bool Step();        // waits once and handles what came; true in a new child
  bool ReadSocket();  // true in a new child
  void Disconnect();
  void Reconnect(int64_t now);
  void OnTimers(int64_t now);
  void Heard(int64_t now);
  [[nodiscard]] bool LeaseIsOver(int64_t now);
  void RestartTimers(int64_t now);  // after a suspension: what passed does not count
  [[nodiscard]] int64_t NextDeadline() const;

  // signalling.cc
  void OnSignals();
  void OnSignal(const signalfd_siginfo& info);
  void Tell(int signal);  // musterd
  void Forward(int signal);
  void ForwardHeld();
  void OnTerminate();

  [[nodiscard]] bool ProgramRuns() const { return state_ == wire::MemberState::kRunning; }

  Settings settings_;
  Host host_;
  Signals signals_;
  Children children_;
  OomCounter oom_;
  StderrRelay stderr_;
  Terminal terminal_;
  Files files_;
  LinksProcess links_;
  WarmStart warm_;

  // The connection.
  UniqueFd socket_;
  BeatPage beats_;
  char* packet_ = nullptr;     // wire::kMaxMessage
  bool welcomed_ = false;      // on this connection
  bool known_ = false;         // there was a Welcome: the token is good
  bool disconnected_ = false;  // since give_up_ was set, until the next Welcome
  bool blocked_ = false;       // the socket takes no more now
  uint8_t token_[wire::kTokenBytes] = {};
  int64_t lease_ms_ = 0;
  int64_t reconnect_ms_ = 30'000;
  int64_t unkillable_ms_ = 60'000;
  int64_t backoff_ms_ = 0;

  // The member.
  wire::MemberState state_ = wire::MemberState::kWaiting;
  uint64_t generation_ = 0;
  pid_t child_ = 0;  // not reaped yet; 0: none
  int wait_status_ = 0;
  bool executed_ = false;
  bool dumping_ = false;  // it is dead, and the kernel writes its core
  bool first_ = true;     // no generation has had the task's stdin yet
  pid_t draining_ = 0;    // the program's pid: it has ended with 0, and its last checkpoint is on its way
  UniqueFd exec_pipe_;

  // What is to be done when nothing of the generation runs any more.
  bool sweeping_ = false;
  bool fencing_ = false;  // on the supervisor's own decision: the death is news to musterd
  bool stop_asked_ = false;
  uint64_t stop_generation_ = 0;
  LastWords last_words_;
  bool leaving_ = false;
  wire::Finish finish_{};
  bool terminated_ = false;    // Slurm has sent SIGTERM: no new generation
  bool gone_by_term_ = false;  // nothing ran when it did: the task ends by the signal
  bool suspended_ = false;
  int64_t resumed_ms_ = 0;  // when that ended; 0: musterd has been heard since
  sigset_t held_{};         // signals for a program that does not run yet

  // Reports that musterd has not taken yet, in the order in which they are sent.
  bool executed_due_ = false;
  bool exited_due_ = false;
  bool signalled_due_ = false;
  int signalled_ = 0;  // the newest signal that musterd is to be told of, and a musterd that is back again
  bool beat_page_due_ = false;
  bool exiting_due_ = false;
  bool stopped_due_ = false;
  int64_t executed_ns_ = 0;
  int64_t exited_ns_ = 0;
  pid_t exited_pid_ = 0;
  bool oom_killed_ = false;
  uint32_t unkillable_ = 0;
  ProgramName program_;
  char tail_[StderrRelay::kTail];
  size_t tail_size_ = 0;

  Deadline lease_;
  Deadline welcome_;
  Deadline redial_;
  Deadline fence_at_;  // musterd gone, or back without a lease, for reconnect_ms
  Deadline give_up_;
  Deadline sweep_end_;
  ExitWatch watch_;  // says when that is
  Deadline exiting_at_;
  KillPass last_pass_;
  Deadline rescan_;
  Deadline core_poll_;
  Deadline leave_at_;
  Deadline drain_end_;
};

}  // namespace muster::supervisor
