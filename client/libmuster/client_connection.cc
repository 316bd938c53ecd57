#include "client/libmuster/client_connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/un.h>

namespace muster::client {
namespace {

constexpr size_t kMaxDescriptors = 4;  // one is meant; more are taken only to be closed

}  // namespace

int Connection::Open(const char* socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = strlen(socket_path);
  if (size == 0 || size >= sizeof(address.sun_path)) return ENAMETOOLONG;
  memcpy(address.sun_path, socket_path, size + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return errno;
  fd_ = static_cast<UniqueFd&&>(fd);
  return 0;
}

void Connection::ShutDown() {
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
  fd_.reset();
}

int Connection::Send(const void* packet, size_t size, int descriptor) {
  iovec part{const_cast<void*>(packet), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  for (;;) {
    if (sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno == EINTR) continue;
    // Too many descriptors under way, or no buffers: as a full queue.
    return errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM ? EAGAIN : errno;
  }
}

Connection::Received Connection::Receive() {
  descriptor_.reset();
  iovec part{packet_, sizeof(packet_)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n = 0;
  do {
    n = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A peer that ended with our packets unread: that is told before its own last packets are given.
  } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Received::kNothing : Received::kClosed;
  TakeDescriptors(&message);
  if (n == 0) return Received::kClosed;
  size_ = static_cast<size_t>(n);
  return (message.msg_flags & MSG_TRUNC) != 0 ? Received::kTooLong : Received::kPacket;
}

void Connection::TakeDescriptors(msghdr* message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (!descriptor_.valid()) descriptor_ = static_cast<UniqueFd&&>(owned);
    }
  }
}

void Connection::Wait(int milliseconds, bool for_room) const {
  pollfd waiting{fd_.get(), static_cast<short>(for_room ? POLLIN | POLLOUT : POLLIN), 0};
  // With no connection (fd -1) this is a sleep. A signal ends it early, which costs one more turn.
  poll(&waiting, 1, milliseconds);
}

}  // namespace muster::client
