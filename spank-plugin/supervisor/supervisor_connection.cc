#include "spank-plugin/supervisor/supervisor_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace muster::supervisor {
namespace {

// Makes another directory the working one while it lives.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(int to) : before_(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    // Without a way back there is no way there: the member's programs start in this directory.
    entered_ = before_.valid() && fchdir(to) == 0;
  }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;
  ~WorkingDirectory() {
    const int saved = errno;
    if (entered_ && fchdir(before_.get()) != 0) _exit(1);
    errno = saved;
  }
  [[nodiscard]] bool entered() const { return entered_; }

 private:
  UniqueFd before_;
  bool entered_ = false;
};

}  // namespace

UniqueFd Connect(int root_fd, const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return UniqueFd();
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return fd;
  const auto dial = [&](const char* to) {
    strcpy(address.sun_path, to);
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  };
  bool connected = false;
  if (root_fd >= 0 && path[0] == '/') {
    const WorkingDirectory root(root_fd);
    connected = root.entered() ? dial(path + strspn(path, "/")) : dial(path);
  } else {
    connected = dial(path);
  }
  if (!connected) {
    const int saved = errno;
    fd.reset();
    errno = saved;
  }
  return fd;
}

Sent SendPacket(int fd, const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  for (;;) {
    if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::kWhole;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? Sent::kLater : Sent::kBroken;
  }
}

Sent SendHello(int fd, const Identity& identity, const Whereabouts& whereabouts) {
  wire::SupervisorHello hello = identity.hello;
  hello.node_list_bytes = static_cast<uint32_t>(strlen(identity.node_list));
  hello.node_name_bytes = static_cast<uint32_t>(strlen(identity.node_name));
  hello.options_bytes = static_cast<uint32_t>(strlen(identity.options));
  hello.components_bytes = static_cast<uint32_t>(strlen(identity.components));
  hello.reconnecting = static_cast<uint32_t>(whereabouts.known);
  hello.state = static_cast<uint32_t>(whereabouts.state);
  hello.generation = whereabouts.generation;
  hello.child_pid = whereabouts.child_pid;
  hello.wait_status = whereabouts.wait_status;
  memcpy(hello.token, whereabouts.token, sizeof(hello.token));
  wire::SetHeader(
      &hello, wire::Type::kSupervisorHello,
      size_t{hello.node_list_bytes} + hello.node_name_bytes + hello.options_bytes + hello.components_bytes);
  const iovec parts[] = {{&hello, sizeof(hello)},
                         {const_cast<char*>(identity.node_list), hello.node_list_bytes},
                         {const_cast<char*>(identity.node_name), hello.node_name_bytes},
                         {const_cast<char*>(identity.options), hello.options_bytes},
                         {const_cast<char*>(identity.components), hello.components_bytes}};
  return SendPacket(fd, parts, 5);
}

Received Receive(int fd, void* buffer, size_t size) {
  iovec part = {buffer, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  Received received;
  ssize_t got = 0;
  do {
    got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    // A peer that ended with our packets unread: that is told before its own last packets are given.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) {
    received.what =
        errno == EAGAIN || errno == EWOULDBLOCK ? Received::What::kNothing : Received::What::kClosed;
    return received;
  }
  for (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(c))) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(sizeof(int)))
      continue;
    int passed = -1;
    memcpy(&passed, CMSG_DATA(c), sizeof(passed));
    received.fd.reset(passed);
  }
  // A SOCK_SEQPACKET socket has no empty packets from us or musterd: nothing read is the end.
  received.what = got == 0 ? Received::What::kClosed : Received::What::kPacket;
  received.size = static_cast<size_t>(got);
  return received;
}

}  // namespace muster::supervisor
