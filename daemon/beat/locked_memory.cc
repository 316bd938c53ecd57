#include "daemon/beat/locked_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace muster {

Status LockMemory() {
  if (::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0) return {};
  return Error{
      Errc::kDenied,
      fmt::format("memory cannot be locked, so a host that swaps can make this node look dead: {} (give the "
                  "service LimitMEMLOCK=infinity)",
                  std::strerror(errno))};
}

void DropStartCode() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::string access;
    std::string offset;
    std::string device;
    std::string inode;
    std::string path;
    fields >> std::hex >> begin >> dash >> end >> access >> offset >> device >> inode >> path;
    // Code from a file, and never what could have been written to: its pages would come back as the file has them.
    if (!fields || access != "r-xp" || !path.starts_with('/')) continue;
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace muster
