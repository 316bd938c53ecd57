// What must be true in a process before a helper runs in it.
#include "spank-plugin/supervisor/helper_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

namespace muster::supervisor {
namespace {

constexpr int kProgramFd = kHelperFds;
constexpr int kAbove = 16;  // numbers that are out of the way
#if defined(__aarch64__)
constexpr const char* kLoaders[] = {"usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
                                    "usr/lib/ld-linux-aarch64.so.1"};
constexpr char kLibraries[] = "usr/lib/aarch64-linux-gnu:usr/lib64";
#else
constexpr const char* kLoaders[] = {"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
                                    "usr/lib64/ld-linux-x86-64.so.2"};
constexpr char kLibraries[] = "usr/lib/x86_64-linux-gnu:usr/lib64";
#endif

[[noreturn]] void Fail(const SpawnHelper& helper, int fd, const char* what) {
  if (fd >= 0) dprintf(fd, "%s%s: %s", helper.before, what, strerror(errno));
  _exit(1);
}

// The descriptors that it knows, and no others: it must keep nobody's pipe open.
bool ArrangeDescriptors(const int (&wanted)[kHelperFds], int program) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  int moved[kHelperFds + 1];
  for (int i = 0; i <= kHelperFds; ++i) {
    const int from = i == kProgramFd ? program : wanted[i] < 0 && i <= STDERR_FILENO ? null : wanted[i];
    moved[i] = from < 0 ? -1 : fcntl(from, F_DUPFD_CLOEXEC, kAbove);
  }
  for (int i = 0; i <= kHelperFds; ++i) {
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

bool IsRoot(int fd) {
  struct stat host {};
  struct stat here {};
  return fstat(fd, &host) == 0 && stat("/", &here) == 0 && host.st_dev == here.st_dev &&
         host.st_ino == here.st_ino;
}

// With the host's loader and libraries, by paths below its root, which is the working directory: an absolute link, as
// /lib64/ld-linux-x86-64.so.2 may be, leads into the container.
void ExecuteWithLoader(const char* program, const char* const* arguments, char** variables) {
  constexpr int kMost = 32;
  const char* words[kMost] = {"", "--inhibit-cache", "--library-path", kLibraries, program};
  int count = 5;
  for (const char* const* word = arguments + 1; *word != nullptr && count < kMost - 1; ++word)
    words[count++] = *word;
  words[count] = nullptr;
  for (const char* loader : kLoaders) {
    words[0] = loader;
    execve(loader, const_cast<char* const*>(words), variables);
  }
}

}  // namespace

pid_t SpawnHelper::Run() const {
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != supervisor) _exit(1);
  setsid();  // signals to the program's group, and to the terminal's, are not for it
  const bool foreign = with_libraries && !IsRoot(root_fd);
  if (fchdir(root_fd) != 0) Fail(*this, failed, "/");
  const char* const path = program + strspn(program, "/");
  const int opened = openat(root_fd, path, O_PATH | O_CLOEXEC);
  if (opened < 0) Fail(*this, failed, program);
  char** variables = environment(block);
  if (variables == nullptr) Fail(*this, failed, "memory");
  int at = -1;  // where `failed` will be
  for (int i = 0; i < kHelperFds; ++i) at = failed >= 0 && descriptors[i] == failed ? i : at;
  if (!ArrangeDescriptors(descriptors, opened)) _exit(1);
  if (foreign) {
    ExecuteWithLoader(path, arguments, variables);
  } else {
    // By descriptor: a container has it at no path.
    syscall(SYS_execveat, kProgramFd, "", const_cast<char* const*>(arguments), variables, AT_EMPTY_PATH);
  }
  Fail(*this, at, program);
}

}  // namespace muster::supervisor
