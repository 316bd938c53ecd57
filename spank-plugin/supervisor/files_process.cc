#include "spank-plugin/supervisor/files_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "spank-plugin/supervisor/helper_spawn.h"
#include "spank-plugin/supervisor/signals.h"
#include "spank-plugin/supervisor/stderr_relay.h"
#include "spank-plugin/supervisor/supervisor_clock.h"
#include "spank-plugin/supervisor/supervisor_connection.h"
#include "wire/files_protocol.h"

namespace muster::supervisor {
namespace {

constexpr char kProgramName[] = "muster-files";

[[noreturn]] void Refuse(const char* why) {
  dprintf(STDERR_FILENO, "muster: cannot start the program: %s\n", why);
  _exit(kCannotStart);
}

// What libmuster reads, with the socket's path below the directory that becomes the working one: in a container it is
// at no other place.
char** EnvironmentOfFiles(const EnvironmentBlock* block) {
  size_t count = 1;
  const auto next = [block](const char* at) { return block != nullptr ? block->Next(at) : nullptr; };
  for (const char* entry = next(nullptr); entry != nullptr; entry = next(entry)) ++count;
  auto** environment = static_cast<char**>(calloc(count, sizeof(char*)));
  if (environment == nullptr) return nullptr;
  constexpr char kSocket[] = "MUSTER_SOCKET=";
  constexpr size_t kSocketSize = sizeof(kSocket) - 1;
  size_t at = 0;
  for (const char* entry = next(nullptr); entry != nullptr; entry = next(entry)) {
    if (strncmp(entry, "MUSTER_", 7) != 0 || strchr(entry, '=') == nullptr) continue;
    char* copy = strdup(entry);
    if (copy == nullptr) {
      free(environment);
      return nullptr;
    }
    if (strncmp(copy, kSocket, kSocketSize) == 0) {
      char* path = copy + kSocketSize;
      const size_t slashes = strspn(path, "/");
      memmove(path, path + slashes, strlen(path + slashes) + 1);
    }
    environment[at++] = copy;
  }
  return environment;
}

// For a process that says on the pipe that its parent reads when it cannot be executed.
constexpr char kFailed[] = {wire::kFilesFailed, '\0'};

}  // namespace

// The name cannot be guessed, so nobody can be there before; another generation of this task finds it again.
bool Files::ChoosePlace(const Host& host, const Identity& identity) {
  if (base_[0] != '\0') return true;
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number)) return false;
  bool found = false;
  for (const char* variable : {wire::kFilesBaseVariable, "TMPDIR"}) {
    found = found || (host.get_environment != nullptr &&
                      host.get_environment(host.context, variable, base_, sizeof(base_)) && base_[0] == '/');
  }
  if (!found) strcpy(base_, "/tmp");
  const wire::SupervisorHello& hello = identity.hello;
  // With the host's name: on a file system of many nodes nobody can see whether another node's is in use.
  char host_name[256] = "";
  gethostname(host_name, sizeof(host_name) - 1);
  snprintf(prefix_, sizeof(prefix_), "%s-%u@%s@", kProgramName, hello.uid, host_name);
  snprintf(suffix_, sizeof(suffix_), "%u.%u.%u-%016llx", hello.job_id, hello.step_id, hello.task_id,
           static_cast<unsigned long long>(number));
  return true;
}

bool Files::Start(const EnvironmentBlock& environment, const Host& host, const Identity& identity,
                  int root_fd) {
  Gone();
  const char* program = environment.Find(wire::kFilesVariable);
  if (program == nullptr) return true;
  errno = EINVAL;
  if (strlen(program) >= sizeof(program_) || !ChoosePlace(host, identity)) return false;
  strcpy(program_, program);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
  UniqueFd control(ends[0]);
  const UniqueFd control_there(ends[1]);
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  UniqueFd ready(ends[0]);
  const UniqueFd ready_there(ends[1]);
  const char* const arguments[] = {kProgramName, "serve", base_, prefix_, suffix_, nullptr};
  SpawnHelper spawn{
      .root_fd = root_fd, .program = program_, .arguments = arguments, .environment = EnvironmentOfFiles};
  spawn.block = &environment;
  spawn.descriptors[wire::kFilesControl] = control_there.get();
  spawn.descriptors[wire::kFilesReadyPipe] = spawn.failed = ready_there.get();
  spawn.before = kFailed;
  pid_ = spawn.Run();
  if (pid_ < 0) {
    pid_ = 0;
    return false;
  }
  control_ = static_cast<UniqueFd&&>(control);
  ready_ = static_cast<UniqueFd&&>(ready);
  return true;
}

void Files::AwaitDirectory(const Host& host) {
  if (pid_ == 0) return;
  char answer[wire::kMaxFilesAnswer + 1];
  size_t size = 0;
  for (;;) {
    // slurmstepd has it blocked here, and would forget it.
    constexpr int kLookMs = 200;
    sigset_t pending;
    if (sigpending(&pending) == 0 && sigismember(&pending, SIGTERM) == 1) RaiseAsDefault(SIGTERM);
    pollfd waiting = {ready_.get(), POLLIN, 0};
    if (poll(&waiting, 1, kLookMs) <= 0) continue;
    const ssize_t got = read(ready_.get(), answer + size, wire::kMaxFilesAnswer - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  answer[size] = '\0';
  if (size < 2 || (answer[0] != wire::kFilesReady && answer[0] != wire::kFilesFailed))
    Refuse("muster-files, which makes its checkpoint directory, has ended");
  if (answer[0] == wire::kFilesFailed) Refuse(answer + 1);
  if (!host.set_environment(host.context, wire::kCheckpointVariable, answer + 1))
    Refuse("MUSTER_CHECKPOINT_DIR");
  host.unset_environment(host.context, wire::kFilesVariable);
}

void Files::Read(StderrRelay* to) {
  char text[wire::kMaxFilesSentence];
  // So many at once: it must not keep the supervisor from its other duties.
  for (int i = 0; i < 16 && control_.valid(); ++i) {
    const ssize_t got = recv(control_.get(), text, sizeof(text), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return control_.reset();
    to->Append(text, static_cast<size_t>(got));
  }
}

void Files::Drain() {
  if (control_.valid()) (void)send(control_.get(), &wire::kFilesDrain, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Files::Gone() {
  pid_ = 0;
  control_.reset();
  ready_.reset();
}

void Files::Remove(int root_fd, int64_t limit_ms) {
  if (base_[0] == '\0') return;
  char name[sizeof(prefix_) + sizeof(suffix_)];
  snprintf(name, sizeof(name), "%s%s", prefix_, suffix_);
  const char* const arguments[] = {kProgramName, "remove", base_, name, nullptr};
  const SpawnHelper spawn{
      .root_fd = root_fd, .program = program_, .arguments = arguments, .environment = EnvironmentOfFiles};
  const pid_t pid = spawn.Run();
  if (pid <= 0) return;
  const int64_t end = MonotonicMs() + limit_ms;
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    // A file system that hangs must not keep the task: the next one of this user's takes it away.
    if (MonotonicMs() >= end) {
      kill(pid, SIGKILL);
      return;
    }
    constexpr int kPauseMs = 2;
    poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace muster::supervisor
