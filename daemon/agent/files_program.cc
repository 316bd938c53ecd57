#include "daemon/agent/files_program.h"

#include <limits.h>
#include <unistd.h>

namespace muster {

std::string FilesProgram() {
  char self[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", self, sizeof(self));
  const std::string path(self, size > 0 ? static_cast<size_t>(size) : 0);
  std::string beside = path.substr(0, path.rfind('/') + 1) + "muster-files";
  return size > 0 && ::access(beside.c_str(), X_OK) == 0 ? beside : "/usr/libexec/muster/muster-files";
}

}  // namespace muster
