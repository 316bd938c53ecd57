#include "daemon/agent/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/helper_program.h"
#include "daemon/agent/let_go.h"
#include "daemon/door/door_packet.h"
#include "wire/wire.h"

namespace muster {
namespace {

// muster-door waits 2 s for another one's end.
constexpr int kDoorMs = 10'000;
constexpr std::chrono::milliseconds kDoorAgain{200};
constexpr std::chrono::milliseconds kDoorLater{2'000};  // one that does not last that long
// The packets of one connection in a row, so that one busy peer does not starve the others.
constexpr int kInARow = 64;

}  // namespace

LocalConnection::~LocalConnection() {
  if (fd_.valid()) loop_.Unwatch(fd_.get());
}

bool LocalConnection::Send(const void* packet, size_t size, int fd) {
  if (!fd_.valid() || closing_) return false;
  if (queue_.empty()) {
    const Moved sent = SendPacket(fd_.get(), {static_cast<const char*>(packet), size}, fd);
    if (sent == Moved::kDone) return true;
    if (sent == Moved::kEnd) return false;  // the read side sees the end and closes
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

void LocalConnection::TakeMemory() {
  const std::array<char, kTakeMemoryBytes> packet{};
  Send(packet.data(), packet.size());
}

void LocalConnection::WatchEvents() {
  loop_.Watch(fd_.get(), EPOLLIN | (queue_.empty() ? 0U : static_cast<uint32_t>(EPOLLOUT)), ready_);
}

void LocalConnection::Flush() {
  while (!queue_.empty()) {
    const Queued& item = queue_.front();
    const Moved sent = SendPacket(fd_.get(), item.bytes, item.fd.get());
    if (sent == Moved::kLater) return;
    queue_.pop_front();
    if (sent == Moved::kEnd) queue_.clear();
  }
  WatchEvents();
  if (closing_) ::shutdown(fd_.get(), SHUT_RDWR);
}

void LocalConnection::CloseWhenSent() {
  closing_ = true;
  if (fd_.valid() && queue_.empty()) ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<std::unique_ptr<LocalSocket>> LocalSocket::Listen(Loop& loop, const std::string& path,
                                                         const std::string& door,
                                                         std::shared_ptr<Worker> chores, Handlers handlers) {
  std::unique_ptr<LocalSocket> self(
      new LocalSocket(loop, path, door, std::move(chores), std::move(handlers)));
  if (Status started = self->StartDoor(); !started) return started.error();
  pollfd said{self->control_.get(), POLLIN, 0};
  DoorReport report;
  size_t size = 0;
  if (::poll(&said, 1, kDoorMs) <= 0 ||
      ReceivePacket(said.fd, {reinterpret_cast<char*>(&report), sizeof report}, &size, nullptr) !=
          Moved::kDone)
    return Error{Errc::kUnavailable, fmt::format("socket {}: {} does not work", path, door)};
  if (report.says != DoorSays::kListening) {
    return Error{report.says == DoorSays::kTaken ? Errc::kConflict : Errc::kUnavailable,
                 fmt::format("socket {}: {}", path, report.text.data())};
  }
  self->listens_ = true;
  self->WatchDoor();
  return self;
}

LocalSocket::~LocalSocket() {
  loop_.Cancel(resume_);
  if (control_.valid()) loop_.Unwatch(control_.get());
  if (listens_) ::unlink(path_.c_str());
}

Status LocalSocket::StartDoor() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return Error{Errc::kUnavailable, fmt::format("socket {}: {}", path_, std::strerror(errno))};
  const UniqueFd its(ends[1]);
  control_.reset(ends[0]);
  door_started_ = loop_.Now();
  const auto pid = StartHelper(door_, {path_}, {{its.get(), kDoorControl}});
  if (!pid) return Error{pid.error().code, fmt::format("socket {}: {}", path_, pid.error().message)};
  ReapLater(loop_, *pid);
  return {};
}

void LocalSocket::WatchDoor() {
  loop_.Watch(control_.get(), EPOLLIN, [this](uint32_t) { OnDoor(); });
}

void LocalSocket::OnDoor() {
  for (int i = 0; i < kInARow; ++i) {
    // A connection that comes when there is no descriptor left for it waits where it is.
    if (UniqueFd room(::fcntl(control_.get(), F_DUPFD_CLOEXEC, 0)); !room.valid()) {
      spdlog::error("{}: out of file descriptors (LimitNOFILE); trying again in a second", path_);
      loop_.Unwatch(control_.get());
      resume_ = loop_.After(std::chrono::seconds(1), [this] {
        resume_ = 0;
        WatchDoor();
      });
      return;
    }
    DoorReport report;
    size_t size = 0;
    UniqueFd fd;
    switch (ReceivePacket(control_.get(), {reinterpret_cast<char*>(&report), sizeof report}, &size, &fd)) {
      case Moved::kLater:
        return;
      case Moved::kEnd:
        return DoorEnded("it has ended");
      case Moved::kDone:
        OnReport(report, std::move(fd));
    }
  }
}

void LocalSocket::OnReport(const DoorReport& report, UniqueFd fd) {
  switch (report.says) {
    case DoorSays::kListening:
      return spdlog::info("{}: muster-door listens again", path_);
    case DoorSays::kFailed:
    case DoorSays::kTaken:
      return spdlog::error("{}: muster-door: {}", path_, report.text.data());
    case DoorSays::kOpened:
      return Open({report.pid, report.uid, report.gid}, std::move(fd));
    case DoorSays::kEnded:
      Uncount(report.uid);
  }
}

void LocalSocket::Uncount(uid_t uid) {
  const auto user = per_user_.find(uid);
  if (user == per_user_.end()) return;
  --users_;
  if (--user->second == 0) per_user_.erase(user);
}

// Connections go on without it, but nobody tells any more when nothing is left of one: each of them counts until it is closed.
void LocalSocket::DoorEnded(const std::string& why) {
  spdlog::error("{}: muster-door: {}; it is started again", path_, why);
  loop_.Unwatch(control_.get());
  control_.reset();
  per_user_.clear();
  users_ = 0;
  for (const auto& [key, connection] : connections_) {
    if (connection->peer_.uid == 0) continue;
    ++per_user_[connection->peer_.uid];
    ++users_;
    connection->orphan_ = true;
  }
  const bool again = loop_.Now() - door_started_ < kDoorLater;
  resume_ = loop_.After(again ? kDoorLater : kDoorAgain, [this] {
    resume_ = 0;
    if (Status started = StartDoor(); !started) return DoorEnded(started.error().message);
    WatchDoor();
  });
}

void LocalSocket::Open(const PeerCredentials& peer, UniqueFd fd) {
  if (peer.uid != 0) {
    const size_t of_user = ++per_user_[peer.uid];
    if (++users_ > kMaxConnections || of_user > kMaxConnectionsPerUser) {
      spdlog::warn("uid {} has too many connections to {}: refused one more", peer.uid, path_);
      return;
    }
  }
  if (!fd.valid()) return;  // there was no descriptor left
  const int key = fd.get();
  auto connection = std::make_shared<LocalConnection>(loop_, std::move(fd), peer);
  connection->ready_ = [this, key](uint32_t events) { Ready(key, events); };
  connections_[key] = connection;
  connection->WatchEvents();
}

void LocalSocket::Ready(int key, uint32_t events) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  const std::shared_ptr<LocalConnection> connection = found->second;
  if ((events & EPOLLOUT) != 0) connection->Flush();
  for (int i = 0; i < kInARow && connection->fd_.valid(); ++i) {
    if (!ReadOne(*connection)) return;
  }
}

bool LocalSocket::ReadOne(LocalConnection& connection) {
  Packet packet;
  packet.bytes.resize(wire::kMaxMessage + 1);
  size_t size = 0;
  switch (ReceivePacket(connection.fd_.get(), packet.bytes, &size, &packet.fd)) {
    case Moved::kLater:
      return false;
    case Moved::kEnd:
      Close(connection);
      return false;
    case Moved::kDone:
      break;
  }
  packet.bytes.resize(size);
  if (!connection.closing_) handlers_.packet(connection, packet);
  if (packet.fd.valid()) LetGoBy(chores_, std::move(packet.fd));
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
  if (connection.orphan_) Uncount(connection.peer_.uid);
  handlers_.closed(connection);
  connection.fd_.reset();
}

}  // namespace muster
