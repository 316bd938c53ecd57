#include "spank-plugin/supervisor/passed_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::supervisor {

char* ReadMemory(int fd, off_t at, size_t size) {
  auto* bytes = static_cast<char*>(malloc(size + 1));
  if (bytes == nullptr) return nullptr;
  size_t got = 0;
  while (got < size) {
    const ssize_t more = pread(fd, bytes + got, size - got, at + static_cast<off_t>(got));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) {
      free(bytes);
      return nullptr;
    }
    got += static_cast<size_t>(more);
  }
  bytes[size] = '\0';
  return bytes;
}

bool SendWith(int socket, const void* body, size_t size, const int* fds, size_t count) {
  iovec part = {const_cast<void*>(body), size};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* passed = CMSG_FIRSTHDR(&message);
  passed->cmsg_level = SOL_SOCKET;
  passed->cmsg_type = SCM_RIGHTS;
  passed->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(passed), fds, count * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

Taken Take(int socket, char* packet, size_t room) {
  Taken taken;
  iovec part = {packet, room};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  taken.size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (taken.size < 0) return taken;
  for (cmsghdr* passed = CMSG_FIRSTHDR(&message); passed != nullptr; passed = CMSG_NXTHDR(&message, passed)) {
    if (passed->cmsg_level != SOL_SOCKET || passed->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < 2 && CMSG_LEN((i + 1) * sizeof(int)) <= passed->cmsg_len; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(passed) + i * sizeof(int), sizeof(fd));
      taken.fds[i].reset(fd);
    }
  }
  return taken;
}

}  // namespace muster::supervisor
