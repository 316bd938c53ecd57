#include "daemon/agent/environment_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace muster {

UniqueFd EnvironmentMemory(const std::vector<std::string>& environment, uint32_t* bytes) {
  std::string block;
  for (const std::string& entry : environment) block.append(entry.c_str(), entry.size() + 1);
  UniqueFd fd(::memfd_create("muster-environment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return {};
  size_t done = 0;
  while (done < block.size()) {
    const ssize_t n = ::write(fd.get(), block.data() + done, block.size() - done);
    if (n <= 0) return {};
    done += static_cast<size_t>(n);
  }
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  *bytes = static_cast<uint32_t>(block.size());
  return fd;
}

}  // namespace muster
