// Starting a muster-files: what must be true in it before it runs.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "spank-plugin/supervisor/files_process.h"
#include "wire/files_protocol.h"

namespace muster::supervisor {
namespace {

constexpr int kProgramFd = 5;
constexpr int kAbove = 16;  // numbers that are out of the way

[[noreturn]] void Fail(int ready, const char* what) {
  if (ready >= 0) {
    dprintf(ready, "%c%s: %s", wire::kFilesFailed, what, strerror(errno));
  }
  _exit(1);
}

// The descriptors that it knows, and no others: it must keep nobody's pipe open.
bool ArrangeDescriptors(int control, int ready, int program) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int from[] = {null, null, null, control, ready, program};
  int moved[6];
  for (int i = 0; i < 6; ++i) moved[i] = from[i] < 0 ? -1 : fcntl(from[i], F_DUPFD_CLOEXEC, kAbove);
  for (int i = 0; i < 6; ++i) {
    if (moved[i] < 0) {
      close(i);
    } else if (dup3(moved[i], i, i == kProgramFd ? O_CLOEXEC : 0) < 0) {
      return false;
    }
  }
  if (syscall(SYS_close_range, kProgramFd + 1, UINT_MAX, 0) != 0) {
    constexpr int kMost = 1024;
    for (int fd = kProgramFd + 1; fd < kMost; ++fd) close(fd);
  }
  return moved[kProgramFd] >= 0;
}

// What libmuster reads, with the socket's path below the directory that becomes the working one: in a container it is
// at no other place.
char** EnvironmentOf(const EnvironmentBlock* block) {
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
    if (copy == nullptr) return nullptr;
    if (strncmp(copy, kSocket, kSocketSize) == 0) {
      char* path = copy + kSocketSize;
      const size_t slashes = strspn(path, "/");
      memmove(path, path + slashes, strlen(path + slashes) + 1);
    }
    environment[at++] = copy;
  }
  return environment;
}

}  // namespace

pid_t SpawnFiles::Run() const {
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != supervisor) _exit(1);
  setsid();  // signals to the program's group, and to the terminal's, are not for it
  if (fchdir(root_fd) != 0) Fail(ready, "/");
  const int opened = openat(root_fd, program + strspn(program, "/"), O_PATH | O_CLOEXEC);
  if (opened < 0) Fail(ready, program);
  char** variables = EnvironmentOf(environment);
  if (variables == nullptr) Fail(ready, "memory");
  if (!ArrangeDescriptors(control, ready, opened)) _exit(1);
  // By descriptor: a container has it at no path.
  syscall(SYS_execveat, kProgramFd, "", const_cast<char* const*>(arguments), variables, AT_EMPTY_PATH);
  Fail(ready >= 0 ? wire::kFilesReadyPipe : -1, program);
}

}  // namespace muster::supervisor
