// Warm starts (--gang=warm=yes): beside the program waits a standby, a Python that was executed as the program was and has
// imported what that has imported. The next generation's program is this process, and not a new one. docs/warm-starts.md says
// why, and what makes a start cold all the same.
//
// The standby is a child of the supervisor's, and the only one that a sweep of a generation spares: no line of the user's has
// run in it, and it has no token.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "base/unique_fd.h"
#include "spank-plugin/supervisor/host.h"
#include "spank-plugin/supervisor/member.h"
#include "spank-plugin/supervisor/signals.h"
#include "spank-plugin/supervisor/strings.h"
#include "spank-plugin/supervisor/supervisor_clock.h"
#include "spank-plugin/supervisor/supervisor_connection.h"
#include "wire/warm_protocol.h"
#include "wire/wire.h"

namespace muster::supervisor {

struct WarmSettings {
  // RLIMIT_NICE as the task had it before it was raised for standbys; the program gets this.
  bool nice_raised = false;
  uint64_t nice_soft = 0;
  uint64_t nice_hard = 0;
  int64_t settle_ms = 20'000;  // without a new import, when musterd does not say that the program gets on
  int64_t answer_ms = 5'000;   // for a standby to become the program
  bool at_idle = true;         // where a standby may come back from that, it is made ready at idle priority
};

class WarmStart {
 public:
  // Reads the value of --gang. Where it does not say warm=yes, nothing below does anything.
  // `arguments`: what Slurm executes as the program, nullptr at the end; nullptr: not known, and not compared.
  // `never`: why there can be no warm start here, else nullptr.
  void Open(const Identity& identity, const WarmSettings& settings, const char* const* arguments, int proc_fd,
            const char* never);

  // In the child that is to become a program that starts cold.
  void InChild(const Host& host) const;
  // In the supervisor, after that was forked with this environment.
  void Forked(pid_t program, uint64_t generation, const EnvironmentBlock& environment);
  // It was executed.
  void Executed();
  // musterd says that the program of this generation gets on.
  void GetsOn(uint64_t generation, const Signals& signals);

  // Makes the standby the program of a generation. False: there is none, and the start is cold.
  bool Begin(uint64_t generation, const EnvironmentBlock& environment, const Host& host,
             const UniqueFd& stderr_pipe);
  // Whether the standby is about to become the program; pid() is 0 then, and becoming() its.
  [[nodiscard]] pid_t becoming() const { return going_ ? program_ : 0; }
  // It has become the program: true once.
  bool TakeStarted();
  // It has not become it and is killed; the start is to be cold, with this environment. true once.
  bool TakeFailed();
  [[nodiscard]] const EnvironmentBlock& environment() const { return next_; }
  // Nobody wants that program any more.
  void Cancel();

  // The standby, which no sweep kills; 0: there is none.
  [[nodiscard]] pid_t pid() const { return going_ ? 0 : standby_; }
  // It was reaped.
  void Gone(pid_t pid, int wait_status);
  // There is to be no standby any more.
  void End();

  // What poll is to wait for, -1: nothing.
  [[nodiscard]] int listener() const { return listener_.get(); }
  [[nodiscard]] int connection() const { return connection_.get(); }
  void OnListener();
  void OnConnection();
  [[nodiscard]] int64_t deadline() const {
    return answer_.at_ms() < look_.at_ms() ? answer_.at_ms() : look_.at_ms();
  }
  // `runs`: the program does, and nobody is about to end it.
  void OnTimers(int64_t now, const Signals& signals, bool runs);
  void RestartTimers(int64_t now);

  // Tells musterd what is to be told.
  [[nodiscard]] bool due() const { return start_news_.due || standby_news_.due; }
  Sent Report(int socket);

 private:
  static constexpr int64_t kLookMs = 5'000;  // between two looks at what the program imports
  struct News {
    bool due = false;
    uint64_t generation = 0;
    wire::WarmState state{};
    char text[wire::kMaxWarmText + 1] = "";
  };
  static Sent Send(int socket, News* news);
  void Tell(News* news, uint64_t generation, wire::WarmState state, const char* text);
  __attribute__((format(printf, 2, 3))) void Refuse(const char* format, ...);
  void TakeHello(const char* packet, size_t size, UniqueFd start, UniqueFd imports);
  [[nodiscard]] bool IsProgramOfSlurm(const char* run) const;
  [[nodiscard]] bool SameArguments() const;
  [[nodiscard]] bool SameArgumentsAfterRun() const;
  void Make(const Signals& signals);
  [[noreturn]] void BecomeStandby(pid_t supervisor, const Signals& signals) const;
  bool NextEnvironment(const Host& host);
  void Kill();
  void LastImport(char* name, size_t size) const;
  void SetCold(uint64_t generation);

  bool on_ = false;
  WarmSettings settings_;
  const char* const* slurm_arguments_ = nullptr;
  int proc_fd_ = -1;
  const char* never_ = nullptr;
  char name_[64] = "";
  UniqueFd listener_;
  UniqueFd connection_;  // of the program, or of the standby
  bool of_standby_ = false;

  // The program of the present generation.
  pid_t program_ = 0;
  uint64_t generation_ = 0;
  bool known_ = false;     // what it was executed with
  bool gets_on_ = false;   // musterd has said so
  bool replaced_ = false;  // a Python below it has asked for this process
  struct stat executed_ {};
  EnvironmentBlock last_;  // as musterd sent it
  Strings environment_;    // as it was executed with
  Strings next_environment_;
  Strings arguments_;
  char interpreter_[4096] = "";
  char directory_[4096] = "";
  uint32_t world_at_ = 0;
  UniqueFd start_;    // of the last one that has started cold
  UniqueFd imports_;  // of the present one
  off_t imported_ = 0;
  int64_t imported_ms_ = 0;

  pid_t standby_ = 0;
  bool made_ = false;  // beside this generation's program there was one
  bool ready_ = false;
  bool going_ = false;
  bool started_ = false;
  bool failed_ = false;
  int tries_ = 0;  // in a row that have led to no warm start
  UniqueFd standby_imports_;
  EnvironmentBlock next_;
  uint64_t next_generation_ = 0;
  char reason_[wire::kMaxWarmText + 1] = "";  // why there is no standby

  Deadline answer_;
  Deadline look_;
  News start_news_;
  News standby_news_;
};

}  // namespace muster::supervisor
