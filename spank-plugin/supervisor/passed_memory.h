// What a supervisor and a program's Python hand to one another: short packets with descriptors of memory.
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/unique_fd.h"

namespace muster::supervisor {

// Reads `size` bytes of a memfd from `at` on; nullptr: there is no memory, or not so much to read. The caller frees them.
char* ReadMemory(int fd, off_t at, size_t size);

// One packet with one or two descriptors; false: errno says why.
bool SendWith(int socket, const void* body, size_t size, const int* fds, size_t count);

struct Taken {
  ssize_t size = -1;  // 0: closed
  UniqueFd fds[2];
};
// Waits for nothing.
Taken Take(int socket, char* packet, size_t room);

}  // namespace muster::supervisor
