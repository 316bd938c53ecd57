// The standby: how it is made, and becomes the program.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank-plugin/supervisor/passed_memory.h"
#include "spank-plugin/supervisor/warm_start.h"

namespace muster::supervisor {
namespace {

constexpr int kMostTries = 3;
constexpr size_t kMaxValue = 256 * 1024;
constexpr char kToken[] = "MUSTER_TOKEN";
constexpr rlim_t kNiceZero = 20;  // of RLIMIT_NICE: what a process needs that leaves SCHED_IDLE for nice 0

}  // namespace

void WarmStart::GetsOn(uint64_t generation, const Signals& signals) {
  if (!on_ || generation != generation_ || program_ <= 0) return;
  gets_on_ = true;  // its hello may be on its way yet
  Make(signals);
}

void WarmStart::Make(const Signals& signals) {
  look_.Clear();
  if (!known_ || reason_[0] != '\0' || standby_ > 0 || going_) return;
  if (tries_ >= kMostTries) return Refuse("%d standbys in a row have not become the program", tries_);
  ++tries_;
  // What is imported later is imported anew by each program.
  if (fcntl(imports_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) != 0)
    return Refuse("the list of its imports cannot be sealed: %s", strerror(errno));
  const pid_t supervisor = getpid();
  ready_ = false;
  made_ = true;
  standby_imports_.reset();
  standby_ = fork();
  if (standby_ == 0) BecomeStandby(supervisor, signals);
  if (standby_ < 0) {
    standby_ = 0;
    return Refuse("a standby cannot be forked: %s", strerror(errno));
  }
  setpgid(standby_, standby_);
}

void WarmStart::BecomeStandby(pid_t supervisor, const Signals& signals) const {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != supervisor) _exit(kCannotStart);
  if (setpgid(0, 0) != 0 || chdir(directory_) != 0) _exit(kCannotStart);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid() || dup2(null.get(), STDERR_FILENO) < 0) _exit(kCannotStart);
  rlimit nice{};
  const bool comes_back =
      geteuid() == 0 || (getrlimit(RLIMIT_NICE, &nice) == 0 && nice.rlim_cur >= kNiceZero);
  const sched_param none{};
  if (settings_.at_idle && comes_back) sched_setscheduler(0, SCHED_IDLE, &none);
  Strings variables;
  char said[sizeof(name_) + sizeof(wire::kWarmStandby)];
  snprintf(said, sizeof(said), "%s%s", name_, wire::kWarmStandby);
  if (!variables.Assign(environment_.bytes(), environment_.size())) _exit(kCannotStart);
  variables.Unset(kToken, strlen(kToken));
  if (!variables.Set(wire::kWarmVariable, strlen(wire::kWarmVariable), said)) _exit(kCannotStart);
  char** arguments = arguments_.Array();
  char** environment = variables.Array();
  if (arguments == nullptr || environment == nullptr) _exit(kCannotStart);
  signals.Restore();
  execve(interpreter_, arguments, environment);
  _exit(kCannotStart);
}

// What the next program would be executed with: what the last one was, but for what musterd says.
bool WarmStart::NextEnvironment(const Host& host) {
  if (!next_environment_.Assign(environment_.bytes(), environment_.size())) return false;
  auto* value = static_cast<char*>(malloc(kMaxValue));
  bool good = value != nullptr;
  const auto original = [&](const char* key, size_t key_size) {
    char name[256];
    snprintf(name, sizeof(name), "%.*s", static_cast<int>(key_size), key);
    return key_size < sizeof(name) && host.get_environment != nullptr &&
           host.get_environment(host.context, name, value, kMaxValue);
  };
  for (const char* key = last_.Next(nullptr); good && key != nullptr; key = last_.Next(key)) {
    const size_t size = EntryOf(key).key_size;
    if (next_.Mentions(key, size)) continue;
    next_environment_.Unset(key, size);
    if (original(key, size)) good = next_environment_.Set(key, size, value);
  }
  for (const char* key = next_.Next(nullptr); good && key != nullptr; key = next_.Next(key)) {
    const EnvironmentEntry entry = EntryOf(key);
    if (entry.kind == EnvironmentEntry::Kind::kUnset) {
      next_environment_.Unset(key, entry.key_size);
    } else if (entry.kind == EnvironmentEntry::Kind::kSet || !original(key, entry.key_size)) {
      good = next_environment_.Set(key, entry.key_size, entry.value);
    }
  }
  free(value);
  constexpr char kTaskPid[] = "SLURM_TASK_PID";
  char pid[16];
  snprintf(pid, sizeof(pid), "%d", standby_);
  return good && next_environment_.Set(kTaskPid, strlen(kTaskPid), pid);
}

bool WarmStart::Begin(uint64_t generation, const EnvironmentBlock& environment, const Host& host,
                      const UniqueFd& stderr_pipe) {
  if (!on_ || standby_ <= 0 || !ready_ || !connection_.valid()) return false;
  if (!next_.Copy(environment) || !NextEnvironment(host)) return false;
  const UniqueFd memory(memfd_create("muster-environment", MFD_CLOEXEC));
  if (!memory.valid() || write(memory.get(), next_environment_.bytes(), next_environment_.size()) !=
                             static_cast<ssize_t>(next_environment_.size()))
    return false;
  // It could not come to it while others keep the cores busy.
  const sched_param none{};
  sched_setscheduler(standby_, SCHED_OTHER, &none);
  const wire::WarmKind go = wire::WarmKind::kGo;
  const int fds[] = {memory.get(), stderr_pipe.get()};
  if (!SendWith(connection_.get(), &go, sizeof(go), fds, stderr_pipe.valid() ? 2 : 1)) return false;
  going_ = true;
  program_ = standby_;
  next_generation_ = generation;
  answer_.Set(MonotonicMs() + settings_.answer_ms);
  return true;
}

bool WarmStart::TakeStarted() {
  if (!started_) return false;
  started_ = false;
  tries_ = 0;
  made_ = gets_on_ = false;
  generation_ = next_generation_;
  last_.Copy(next_);
  environment_.Assign(next_environment_.bytes(), next_environment_.size());
  imports_ = static_cast<UniqueFd&&>(standby_imports_);
  imported_ = 0;
  imported_ms_ = MonotonicMs();
  look_.Set(imported_ms_ + kLookMs);
  Tell(&start_news_, generation_, wire::WarmState::kWarm, "");
  return true;
}

bool WarmStart::TakeFailed() {
  const bool failed = failed_;
  failed_ = false;
  return failed;
}

void WarmStart::Cancel() {
  if (!going_) return;
  going_ = failed_ = false;
  standby_ = 0;
  generation_ = next_generation_;
  connection_.reset();
  answer_.Clear();
  if (reason_[0] == '\0')
    snprintf(reason_, sizeof(reason_), "the generation before was stopped as it started");
}

void WarmStart::Gone(pid_t pid, int wait_status) {
  if (pid != standby_ || pid == 0) return;
  standby_ = 0;
  connection_.reset();
  if (going_) {
    going_ = false;
    failed_ = true;
    answer_.Clear();
  }
  if (WIFSIGNALED(wait_status)) {
    Refuse("its standby was killed by signal %d", WTERMSIG(wait_status));
  } else if (!ready_ || WEXITSTATUS(wait_status) != 0) {
    Refuse("its standby has ended with code %d", WEXITSTATUS(wait_status));
  } else {
    Refuse("its standby has ended");
  }
}

void WarmStart::Kill() {
  connection_.reset();
  answer_.Clear();
  if (standby_ > 0) kill(standby_, SIGKILL);
  if (going_) failed_ = true;
  going_ = false;
  standby_ = 0;
}

void WarmStart::End() {
  if (!going_) Kill();
  look_.Clear();
  if (on_ && reason_[0] == '\0') snprintf(reason_, sizeof(reason_), "the job is about to end");
}

void WarmStart::OnTimers(int64_t now, const Signals& signals, bool runs) {
  if (answer_.Passed(now)) {
    Refuse("its standby has not become the program within %lld ms",
           static_cast<long long>(settings_.answer_ms));
    Kill();
  }
  if (!look_.Passed(now)) return;
  look_.Set(now + kLookMs);
  struct stat list {};
  if (fstat(imports_.get(), &list) != 0) return look_.Clear();
  if (list.st_size != imported_) imported_ms_ = now;
  imported_ = list.st_size;
  if (runs && (gets_on_ || now - imported_ms_ >= settings_.settle_ms)) Make(signals);
}

void WarmStart::RestartTimers(int64_t now) {
  if (answer_.IsSet()) answer_.Set(now + settings_.answer_ms);
}

// The name in the last record that says that a module was found.
void WarmStart::LastImport(char* name, size_t size) const {
  name[0] = '\0';
  struct stat list {};
  if (!standby_imports_.valid() || fstat(standby_imports_.get(), &list) != 0) return;
  constexpr off_t kTail = 4096;
  const off_t at = list.st_size > kTail ? list.st_size - kTail : 0;
  const auto length = static_cast<size_t>(list.st_size - at);
  char* tail = ReadMemory(standby_imports_.get(), at, length);
  if (tail == nullptr) return;
  for (size_t i = 0; i < length; i += strlen(tail + i) + 1) {
    if (tail[i] == '+')
      snprintf(name, size, "%.*s", static_cast<int>(strcspn(tail + i + 1, "\t")), tail + i + 1);
  }
  free(tail);
}

}  // namespace muster::supervisor
