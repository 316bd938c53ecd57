// Shared memory, with what every libc has: a container may come with one that is older than the calls for it.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace muster::client {

// A memfd that can be sealed; -1 and errno when there is none.
inline int MakeMemoryFile(const char* name) {
  return static_cast<int>(syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

// Whether it holds `bytes` bytes that nobody can take away.
inline bool HoldsForGood(int fd, uint64_t bytes) {
  // fstat has been a symbol of its own only since glibc 2.33.
  const off_t size = lseek(fd, 0, SEEK_END);
  return size >= 0 && static_cast<uint64_t>(size) >= bytes && (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0;
}

}  // namespace muster::client
