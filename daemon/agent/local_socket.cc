#include "daemon/agent/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "wire/wire.h"

namespace muster {

LocalConnection::~LocalConnection() {
  if (fd_.valid()) loop_.Unwatch(fd_.get());
}

LocalConnection::Sent LocalConnection::TrySend(const void* packet, size_t size, int fd) {
  iovec io{const_cast<void*>(packet), size};
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
    if (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::kDone;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS ? Sent::kLater : Sent::kFailed;
  }
}

bool LocalConnection::Send(const void* packet, size_t size, int fd) {
  if (!fd_.valid() || closing_) return false;
  if (queue_.empty()) {
    const Sent sent = TrySend(packet, size, fd);
    if (sent == Sent::kDone) return true;
    if (sent == Sent::kFailed) return false;  // the read side sees the end and closes
  }
  if (queue_.size() >= kMaxQueued) {
    queue_.clear();
    CloseWhenSent();
    return false;
  }
  Queued item;
  item.bytes.assign(static_cast<const char*>(packet), static_cast<const char*>(packet) + size);
  if (fd >= 0) item.fd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  queue_.push_back(std::move(item));
  WatchEvents();
  return true;
}

void LocalConnection::WatchEvents() {
  loop_.Watch(fd_.get(), EPOLLIN | (queue_.empty() ? 0U : static_cast<uint32_t>(EPOLLOUT)), ready_);
}

void LocalConnection::Flush() {
  while (!queue_.empty()) {
    const Queued& item = queue_.front();
    const Sent sent = TrySend(item.bytes.data(), item.bytes.size(), item.fd.get());
    if (sent == Sent::kLater) return;
    queue_.pop_front();
    if (sent == Sent::kFailed) queue_.clear();
  }
  WatchEvents();
  if (closing_) ::shutdown(fd_.get(), SHUT_RDWR);
}

void LocalConnection::CloseWhenSent() {
  closing_ = true;
  if (fd_.valid() && queue_.empty()) ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<std::unique_ptr<LocalSocket>> LocalSocket::Listen(Loop& loop, const std::string& path,
                                                         Handlers handlers) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{Errc::kInvalid, fmt::format("socket: '{}' is not a usable path for a socket", path)};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto failed = [&](const char* what) {
    return Error{Errc::kUnavailable, fmt::format("socket {}: {}: {}", path, what, std::strerror(errno))};
  };
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return failed("socket");
  // A socket file without a listener behind it is left from a killed musterd; one with a listener is another
  // musterd.
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    return Error{Errc::kConflict, fmt::format("socket {}: another musterd is listening on it", path)};
  }
  struct stat left {};
  if (errno == ECONNREFUSED && ::lstat(path.c_str(), &left) == 0 && S_ISSOCK(left.st_mode)) {
    ::unlink(path.c_str());
  }
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return failed("bind");
  // Every user may connect: what they may do is decided by who they are (SO_PEERCRED).
  if (::chmod(path.c_str(), 0666) != 0) return failed("chmod");
  if (::listen(fd.get(), 1024) != 0) return failed("listen");
  std::unique_ptr<LocalSocket> self(new LocalSocket(loop, std::move(fd), path, std::move(handlers)));
  loop.Watch(self->fd_.get(), EPOLLIN, [raw = self.get()](uint32_t) { raw->Accept(); });
  return self;
}

LocalSocket::~LocalSocket() {
  loop_.Cancel(resume_);
  loop_.Unwatch(fd_.get());
  ::unlink(path_.c_str());
}

void LocalSocket::Accept() {
  while (true) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE) PauseAccepting();
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    if (peer.uid != 0) {
      if (connections_.size() >= kMaxConnections || per_user_[peer.uid] >= kMaxConnectionsPerUser) {
        spdlog::warn("uid {} has too many connections to {}: refused one more", peer.uid, path_);
        continue;
      }
    }
    ++per_user_[peer.uid];
    const int key = fd.get();
    auto connection = std::make_shared<LocalConnection>(loop_, std::move(fd),
                                                        PeerCredentials{peer.pid, peer.uid, peer.gid});
    connection->ready_ = [this, key](uint32_t events) { Ready(key, events); };
    connections_[key] = connection;
    connection->WatchEvents();
  }
}

// Out of descriptors: who waits to be let in waits on, instead of keeping the loop busy.
void LocalSocket::PauseAccepting() {
  spdlog::error("{}: out of file descriptors (LimitNOFILE); trying again in a second", path_);
  loop_.Unwatch(fd_.get());
  resume_ = loop_.After(std::chrono::seconds(1), [this] {
    resume_ = 0;
    loop_.Watch(fd_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  });
}

void LocalSocket::Ready(int key, uint32_t events) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  const std::shared_ptr<LocalConnection> connection = found->second;
  if ((events & EPOLLOUT) != 0) connection->Flush();
  // Bounded, so that one busy peer does not starve the others.
  for (int i = 0; i < 64 && connection->fd_.valid(); ++i) {
    if (!ReadOne(*connection)) return;
  }
}

bool LocalSocket::ReadOne(LocalConnection& connection) {
  Packet packet;
  packet.bytes.resize(wire::kMaxMessage + 1);
  iovec io{packet.bytes.data(), packet.bytes.size()};
  constexpr size_t kMaxFds = 4;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(connection.fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    Close(connection);
    return false;
  }
  packet.bytes.resize(static_cast<size_t>(n));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      UniqueFd owned(fd);
      if (!packet.fd.valid()) packet.fd = std::move(owned);  // any further one is closed here
    }
  }
  if (!connection.closing_) handlers_.packet(connection, std::move(packet));
  return true;
}

void LocalSocket::Close(LocalConnection& connection) {
  if (!connection.fd_.valid()) return;
  const int key = connection.fd_.get();
  const auto found = connections_.find(key);
  const std::shared_ptr<LocalConnection> keep = found == connections_.end() ? nullptr : found->second;
  if (keep == nullptr) return;
  loop_.Unwatch(key);
  connections_.erase(found);
  if (--per_user_[connection.peer_.uid] == 0) per_user_.erase(connection.peer_.uid);
  handlers_.closed(connection);
  connection.fd_.reset();
}

}  // namespace muster
