#include "daemon/door/door_packet.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace muster {

Moved SendPacket(int socket, std::span<const char> bytes, int fd) {
  iovec io{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Moved::kDone;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS ? Moved::kLater : Moved::kEnd;
  }
}

Moved ReceivePacket(int socket, std::span<char> into, size_t* size, UniqueFd* fd) {
  iovec io{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_LEN(sizeof(int));  // with CMSG_SPACE there is room for two
  }
  const ssize_t n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Moved::kLater : Moved::kEnd;
  if (n == 0) return Moved::kEnd;
  *size = static_cast<size_t>(n);
  const cmsghdr* header = fd != nullptr ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int taken = -1;
    std::memcpy(&taken, CMSG_DATA(header), sizeof taken);
    fd->reset(taken);
  }
  return Moved::kDone;
}

}  // namespace muster
