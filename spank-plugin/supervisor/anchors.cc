#include "spank-plugin/supervisor/anchors.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

namespace muster::supervisor {
namespace {

bool KeepsOthersWaiting(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) == 0) return false;
  struct stat info {};
  if (fstat(fd, &info) != 0) return false;
  return S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || (S_ISCHR(info.st_mode) && isatty(fd) != 0);
}

}  // namespace

Anchors OpenAnchors() {
  Anchors anchors;
  anchors.root.reset(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  anchors.proc.reset(open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  anchors.cgroups.reset(open("/sys/fs/cgroup", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return anchors;
}

void ReleaseInherited(int proc_fd, const int* keep, int n) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  int list_fd = openat(proc_fd, "self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list_fd < 0) return;
  DIR* list = fdopendir(list_fd);
  if (list == nullptr) {
    close(list_fd);
    return;
  }
  while (const dirent* entry = readdir(list)) {
    const int fd = atoi(entry->d_name);
    if (fd <= STDERR_FILENO || fd == list_fd || fd == null.get() || !KeepsOthersWaiting(fd)) continue;
    bool kept = false;
    for (int i = 0; i < n; ++i) kept = kept || keep[i] == fd;
    if (kept) continue;
    if (null.valid()) {
      dup3(null.get(), fd, O_CLOEXEC);
    } else {
      close(fd);  // a container without /dev/null
    }
  }
  closedir(list);
}

}  // namespace muster::supervisor
