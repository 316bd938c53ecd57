#include "spank-plugin/outcome.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank-plugin/spank_header.h"
#include "spank-plugin/submission.h"
#include "spank-plugin/supervisor/supervisor_clock.h"

extern char** environ;  // srun's

namespace muster::plugin {
namespace {

constexpr int64_t kPatienceMs = 3000;
constexpr int kAgainMs = 100;  // doubles
constexpr int kLongestAgainMs = 800;

struct Launched {
  pid_t srun = 0;
  int64_t at_ns = 0;
  char gang[32] = "";
  char muster[256] = "";
};
constinit Launched launched;

const char* After(const char* text, const char* what) {
  const char* found = text != nullptr ? strstr(text, what) : nullptr;
  return found != nullptr ? found + strlen(what) : nullptr;
}

bool Begins(const char* text, const char* with) {
  return text != nullptr && strncmp(text, with, strlen(with)) == 0;
}

// Reads a pipe to its end. Null when the pipe has not ended by the deadline. The caller frees the text.
char* ReadUp(int fd, int64_t end) {
  size_t size = 0;
  size_t room = 64 * 1024;
  auto* text = static_cast<char*>(malloc(room + 1));
  while (text != nullptr) {
    const int64_t left = end - supervisor::MonotonicMs();
    pollfd readable = {fd, POLLIN, 0};
    const int polled = left > 0 ? poll(&readable, 1, static_cast<int>(left)) : 0;
    if (polled < 0 && errno == EINTR) continue;
    const ssize_t got = polled == 1 ? read(fd, text + size, room - size) : -1;
    if (got < 0 && polled == 1 && errno == EINTR) continue;
    if (got < 0) {
      free(text);
      return nullptr;
    }
    if (got == 0) break;
    size += static_cast<size_t>(got);
    if (size == room) text = static_cast<char*>(realloc(text, (room *= 2) + 1));
  }
  if (text != nullptr) text[size] = '\0';
  return text;
}

char* AskMuster(int64_t end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return nullptr;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // srun has blocked what ends a program.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  char words[][8] = {"muster", "--json", "status"};
  char* arguments[] = {words[0], words[1], words[2], launched.gang, nullptr};
  pid_t muster = 0;
  const int failed = posix_spawn(&muster, launched.muster, &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char* text = failed == 0 ? ReadUp(ends[0], end) : nullptr;
  close(ends[0]);
  if (failed != 0) return nullptr;
  kill(muster, SIGKILL);
  // One that stands still in a system call is left to init.
  for (int i = 0; i < 10 && waitpid(muster, nullptr, WNOHANG) == 0; ++i) poll(nullptr, 0, 10);
  return text;
}

// A musterd that does not answer may be one that is restarted.
bool HasSucceeded() {
  if (access(launched.muster, X_OK) != 0) return false;
  const int64_t end = supervisor::MonotonicMs() + kPatienceMs;
  for (int pause = kAgainMs;; pause = pause * 2 < kLongestAgainMs ? pause * 2 : kLongestAgainMs) {
    char* const status = AskMuster(end);
    const bool answer = status != nullptr && status[0] != '\0';
    const Outcome outcome = answer ? OutcomeIn(status, launched.at_ns) : Outcome::kRuns;
    free(status);
    if (outcome != Outcome::kRuns || supervisor::MonotonicMs() + pause >= end)
      return outcome == Outcome::kSucceeded;
    poll(nullptr, 0, pause);
  }
}

// Runs before all that srun itself has to do at its exit: Slurm registers that earlier.
void OnExit(int status, void* /*unused*/) {
  if (status == 0 || getpid() != launched.srun || !HasSucceeded()) return;
  slurm_info("muster: gang %s has succeeded: srun ends with 0, not with %d", launched.gang, status & 0xff);
  // glibc goes on with the other handlers, and takes the last status.
  exit(0);
}

}  // namespace

Outcome OutcomeIn(const char* status, int64_t launched_ns) {
  char own[64];
  snprintf(own, sizeof(own), "\"launched_ns\": %lld,", static_cast<long long>(launched_ns));
  // A gang's keys are in the order of the alphabet.
  const char* state = After(After(status, own), "\"state\": ");
  if (state == nullptr) return Outcome::kUnknown;
  if (!Begins(state, "\"finished\"")) return Outcome::kRuns;
  return Begins(After(state, "\"succeeded\": "), "true") ? Outcome::kSucceeded : Outcome::kFailed;
}

void EndAsTheGang(uint32_t job_id, uint32_t step_id, const char* muster) {
  const char* at = getenv(kLaunchVariable);
  if (launched.srun != 0 || at == nullptr || strlen(muster) >= sizeof(launched.muster)) return;
  strcpy(launched.muster, muster);
  launched.srun = getpid();
  launched.at_ns = static_cast<int64_t>(strtoull(at, nullptr, 16));
  snprintf(launched.gang, sizeof(launched.gang), "%u.%u", job_id, step_id);
  on_exit(OnExit, nullptr);
}

}  // namespace muster::plugin
