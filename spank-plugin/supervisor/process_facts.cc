#include "spank-plugin/supervisor/process_facts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace muster::supervisor {
namespace {

constexpr unsigned long kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC of the kernel's sched.h
constexpr int kCoreFlag = 0x80;                     // WCOREFLAG of a wait status

// Reads a small file below `dir_fd` as a string; false when it cannot.
bool ReadText(int dir_fd, const char* path, char* text, size_t size) {
  const UniqueFd fd(openat(dir_fd, path, O_RDONLY | O_CLOEXEC));
  const ssize_t got = fd.valid() ? read(fd.get(), text, size - 1) : -1;
  text[got > 0 ? got : 0] = '\0';
  return got > 0;
}

bool ReadOf(int proc_fd, pid_t pid, const char* file, char* text, size_t size) {
  char path[64];
  snprintf(path, sizeof(path), "%d/%s", pid, file);
  return ReadText(proc_fd, path, text, size);
}

// Each process in one of the kernel's lists of children. False: the list could not be read to its end.
template <typename Each>
bool EachListed(int list_fd, Each each) {
  char text[4096];
  off_t at = 0;
  for (;;) {
    const ssize_t got = pread(list_fd, text, sizeof(text) - 1, at);
    if (got <= 0) return got == 0;
    text[got] = '\0';
    // Each number is followed by a space; one that is cut off at the buffer's end is read again.
    const char* last = strrchr(text, ' ');
    if (last == nullptr) return false;
    for (char* number = text; number < last;) {
      const long pid = strtol(number, &number, 10);
      ++number;
      if (pid > 0) each(static_cast<pid_t>(pid));
    }
    at += last + 1 - text;
  }
}

// Sends SIGKILL to a process if `parent` is its parent, and says whether it has got it. The number may be another process's by now: the
// handle is of the process that is looked at.
bool KillChildOf(int proc_fd, pid_t parent, pid_t pid) {
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  char stat[1024];
  if (!handle.valid() || !ReadOf(proc_fd, pid, "stat", stat, sizeof(stat)) ||
      atoi(StatField(stat, 4)) != parent)
    return false;
  return syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0) == 0;
}

void KillBelowProcess(int proc_fd, pid_t parent, int depth, KillPass* pass) {
  char path[64];
  snprintf(path, sizeof(path), "%d/task", parent);
  UniqueFd threads(openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* directory = threads.valid() ? fdopendir(threads.get()) : nullptr;
  if (directory == nullptr) {
    pass->all_exit = false;
    return;
  }
  const int fd = threads.release();
  errno = 0;
  for (const dirent* thread = readdir(directory); thread != nullptr; errno = 0, thread = readdir(directory)) {
    if (thread->d_name[0] == '.') continue;
    char stat[1024];
    snprintf(path, sizeof(path), "%.20s/stat", thread->d_name);
    pass->all_exit &= ReadText(fd, path, stat, sizeof(stat)) && OnlyExits(stat);
    snprintf(path, sizeof(path), "%.20s/children", thread->d_name);
    const UniqueFd list(openat(fd, path, O_RDONLY | O_CLOEXEC));
    const auto each = [&](pid_t pid) {
      pass->Found(parent, pid);
      if (KillChildOf(proc_fd, parent, pid) && depth > 1) {
        KillBelowProcess(proc_fd, pid, depth - 1, pass);
      } else {
        pass->all_exit = false;
      }
    };
    pass->all_exit &= list.valid() && EachListed(list.get(), each);
  }
  pass->all_exit &= errno == 0;
  closedir(directory);
}

}  // namespace

ProgramName NameOf(int proc_fd, pid_t pid) {
  ProgramName name;
  char text[64];
  if (!ReadOf(proc_fd, pid, "comm", text, sizeof(text))) return name;
  text[strcspn(text, "\n")] = '\0';
  snprintf(name.text, sizeof(name.text), "%.15s", text);
  return name;
}

bool HasExecuted(int proc_fd, pid_t pid) {
  char stat[1024];
  if (!ReadOf(proc_fd, pid, "stat", stat, sizeof(stat))) return false;
  return (strtoul(StatField(stat, 9), nullptr, 10) & kForkedWithoutExec) == 0;
}

bool MayDumpCore(int proc_fd, pid_t pid) {
  char pattern[4];
  // A pattern that names a program is followed whatever the limit is.
  if (ReadText(proc_fd, "sys/kernel/core_pattern", pattern, sizeof(pattern)) && pattern[0] == '|')
    return true;
  rlimit limit{};
  return prlimit(pid, RLIMIT_CORE, nullptr, &limit) != 0 || limit.rlim_cur != 0;
}

int CoreDumpStatus(int proc_fd, pid_t pid) {
  char text[4096];
  if (!ReadOf(proc_fd, pid, "status", text, sizeof(text))) return 0;
  const char* dumping = strstr(text, "\nCoreDumping:\t");
  if (dumping == nullptr || dumping[strlen("\nCoreDumping:\t")] != '1') return 0;
  // Kernels before 5.16 do not show the signal here yet.
  const int signal = ReadOf(proc_fd, pid, "stat", text, sizeof(text)) ? atoi(StatField(text, 52)) & 0x7f : 0;
  return (signal != 0 ? signal : SIGABRT) | kCoreFlag;
}

bool Children::Open(int proc_fd) {
  list_.reset(openat(proc_fd, "thread-self/children", O_RDONLY | O_CLOEXEC));
  return list_.valid();
}

template <typename Each>
int Children::Visit(pid_t spared, Each each) const {
  int count = 0;
  EachListed(list_.get(), [&](pid_t pid) {
    if (pid == spared) return;
    ++count;
    each(pid);
  });
  return count;
}

int Children::Kill(pid_t spared) const {
  return Visit(spared, [](pid_t pid) { kill(pid, SIGKILL); });
}

KillPass Children::KillBelow(int proc_fd, pid_t spared) const {
  constexpr int kDepth = 32;
  KillPass pass;
  const bool whole = EachListed(list_.get(), [&](pid_t pid) {
    if (pid == spared) return;
    pass.Found(0, pid);
    pass.all_exit &= kill(pid, SIGKILL) == 0;
    KillBelowProcess(proc_fd, pid, kDepth, &pass);
  });
  pass.all_exit &= whole;
  return pass;
}

int Children::Count(pid_t spared) const {
  return Visit(spared, [](pid_t /*pid*/) {});
}

Exiting Children::Look(int proc_fd, pid_t spared) const {
  Exiting left;
  Visit(spared, [&](pid_t pid) {
    char stat[1024] = "";
    ReadOf(proc_fd, pid, "stat", stat, sizeof(stat));
    left.Add(stat);
  });
  return left;
}

void OomCounter::Open(int proc_fd, int cgroups_fd) {
  char groups[4096];
  if (cgroups_fd < 0 || !ReadText(proc_fd, "self/cgroup", groups, sizeof(groups))) return;
  // Lines are ID:CONTROLLERS:PATH; v2's is 0::PATH.
  char* state = nullptr;
  for (char* line = strtok_r(groups, "\n", &state); line != nullptr; line = strtok_r(nullptr, "\n", &state)) {
    char* controllers = strchr(line, ':');
    char* path = controllers != nullptr ? strchr(controllers + 1, ':') : nullptr;
    if (path == nullptr) continue;
    *path++ = '\0';
    const bool v2 = controllers[1] == '\0';
    if (!v2 && strcmp(controllers + 1, "memory") != 0) continue;
    char name[4200];
    snprintf(name, sizeof(name), v2 ? ".%s/memory.events" : "memory%s/memory.oom_control", path);
    const int fd = openat(cgroups_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) file_.reset(fd);
    if (!v2 && file_.valid()) break;
  }
  seen_ = Read();
}

long OomCounter::Read() const {
  char text[1024];
  const ssize_t got = file_.valid() ? pread(file_.get(), text, sizeof(text) - 1, 0) : -1;
  if (got <= 0) return 0;
  text[got] = '\0';
  const char* kills = strstr(text, "oom_kill ");
  return kills != nullptr ? atol(kills + strlen("oom_kill ")) : 0;
}

bool OomCounter::Advanced() {
  const long now = Read();
  const bool advanced = now > seen_;
  seen_ = now;
  return advanced;
}

}  // namespace muster::supervisor
