// muster-door SOCKET: musterd's local socket. It has one process for each connection, which hands packets to and fro.
//
// Every user may connect, and whoever connects may pass descriptors. To close one may take as long as its owner likes: a file
// of a FUSE server that does not answer keeps who closes it in the kernel, where SIGKILL does not help; a TCP connection
// with SO_LINGER does so for years; and to drop what has been passed is to close it. So musterd takes descriptors from its own
// processes only. The process here that has received something that is not memory keeps it until it ends, and what never ends
// then is a process that has nothing of musterd's and nothing of other users'.
//
// Processes: the door, which musterd has started; a few that wait in accept, since the one that accepts must be the one
// that ends with the connection; and one for each connection. All end when musterd does.
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <span>
#include <unordered_map>

#include "base/unique_fd.h"
#include "daemon/door/door_packet.h"
#include "daemon/door/door_report.h"
#include "wire/wire.h"

namespace muster {
namespace {

constexpr size_t kWaiting = 4;  // processes in accept
constexpr int kRetryMs = 100;
constexpr int kLastWordsMs = 10'000;  // for a peer to read what a musterd has said that has closed
// A door that a killed musterd has left ends within milliseconds.
constexpr int kTakenMs = 2'000;

// To musterd; waits for room. False when musterd is gone.
bool Tell(const DoorReport& report, int fd = -1) {
  const std::span<const char> bytes(reinterpret_cast<const char*>(&report), sizeof report);
  while (true) {
    const Moved sent = SendPacket(kDoorControl, bytes, fd);
    if (sent != Moved::kLater) return sent == Moved::kDone;
    pollfd room{kDoorControl, POLLOUT, 0};
    ::poll(&room, 1, kRetryMs);  // ENOBUFS is not told of
  }
}

__attribute__((format(printf, 2, 3))) int Fail(DoorSays says, const char* format, ...) {
  DoorReport report;
  report.says = says;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(report.text.data(), report.text.size(), format, arguments);
  va_end(arguments);
  Tell(report);
  return 1;
}

// ---- a connection

// A packet on its way.
struct Held {
  bool full = false;
  size_t size = 0;
  UniqueFd fd;
  // One more than the longest has, so that musterd sees that it is too long.
  std::array<char, wire::kMaxMessage + 1> bytes{};
};

// Whether the next packet brings descriptors, which are left where they are.
Moved Look(int user, bool* brings) {
  char first = 0;
  iovec io{&first, 1};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  const ssize_t n = ::recvmsg(user, &message, MSG_DONTWAIT | MSG_PEEK);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Moved::kLater : Moved::kEnd;
  *brings = (message.msg_flags & MSG_CTRUNC) != 0;
  return n == 0 ? Moved::kEnd : Moved::kDone;
}

// A packet without descriptors. kEnd: the connection has ended, or one comes that brings some.
Moved ReceiveBytes(int user, Held* held) {
  bool brings = false;
  const Moved next = Look(user, &brings);
  if (next != Moved::kDone) return next;
  return brings ? Moved::kEnd : ReceivePacket(user, held->bytes, &held->size, nullptr);
}

// A packet, with its memory if it brings one. What else it brings stays open in this process, and `foreign` says so.
Moved ReceiveMemory(int user, Held* held, bool* foreign) {
  constexpr size_t kMost = 253;  // SCM_MAX_FD
  alignas(cmsghdr) static std::array<char, CMSG_SPACE(sizeof(int) * kMost)> control;
  iovec io{held->bytes.data(), held->bytes.size()};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(user, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Moved::kLater : Moved::kEnd;
  held->size = static_cast<size_t>(n);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    *foreign = header->cmsg_len != CMSG_LEN(sizeof fd) || ::fcntl(fd, F_GET_SEALS) < 0;
    if (!*foreign) held->fd.reset(fd);
  }
  return n == 0 ? Moved::kEnd : Moved::kDone;
}

// Hands a held packet on. False when who is to get it is gone.
bool HandOn(int to, Held* held) {
  if (!held->full) return true;
  const Moved sent = SendPacket(to, {held->bytes.data(), held->size}, held->fd.get());
  if (sent == Moved::kLater) return true;
  held->full = false;
  held->fd.reset();
  return sent == Moved::kDone;
}

// Until one of them has ended the connection, and what it has said before has been handed over. What either end has queued
// when this process ends would be an error to the other one, before its own last words: so all of it is read.
void Relay(int user, int musterd) {
  static Held up;
  static Held down;
  bool user_hears = true;
  bool musterd_hears = true;
  bool takes_memory = false;
  bool foreign = false;
  bool gone = false;  // musterd's end; what it has said is read
  const auto from_user = [&] {
    return takes_memory && !foreign ? ReceiveMemory(user, &up, &foreign) : ReceiveBytes(user, &up);
  };
  while (true) {
    const auto wait_for = [](int fd, bool hears, const Held& from, bool other_hears, const Held& to) {
      const int events = (other_hears && !from.full ? POLLIN : 0) | (hears && to.full ? POLLOUT : 0);
      // Of what nothing is waited for the end would be told again and again.
      return pollfd{events == 0 ? -1 : fd, static_cast<short>(events), 0};
    };
    std::array<pollfd, 2> polled{wait_for(user, user_hears, up, musterd_hears, down),
                                 wait_for(musterd, musterd_hears, down, user_hears, up)};
    if (!gone) polled[1].fd = musterd;  // its end is told of also when nothing else of it is waited for
    const int ready = ::poll(polled.data(), polled.size(), gone ? kLastWordsMs : -1);
    gone = gone || (polled[1].revents & (POLLHUP | POLLERR)) != 0;
    if (gone && (!user_hears || ready == 0)) break;
    musterd_hears = musterd_hears && HandOn(musterd, &up);
    user_hears = user_hears && HandOn(user, &down);
    if (musterd_hears && !up.full) {
      const Moved got = from_user();
      if (got == Moved::kEnd) break;
      up.full = got == Moved::kDone;
    }
    if (user_hears && !down.full) {
      const Moved got = ReceivePacket(musterd, down.bytes, &down.size, &down.fd);
      if (got == Moved::kEnd) break;
      const bool order = got == Moved::kDone && down.size == kTakeMemoryBytes;
      takes_memory = takes_memory || order;
      down.full = got == Moved::kDone && !order;
    }
    if (!user_hears && !musterd_hears) break;
  }
  if (down.full) SendPacket(user, {down.bytes.data(), down.size}, down.fd.get());
  ::shutdown(musterd, SHUT_RDWR);
  while (ReceivePacket(musterd, down.bytes, &down.size, &down.fd) == Moved::kDone) {
    if (down.size != kTakeMemoryBytes) SendPacket(user, {down.bytes.data(), down.size}, down.fd.get());
    down.fd.reset();
  }
  ::shutdown(user, SHUT_RDWR);
  while (from_user() == Moved::kDone) up.fd.reset();
}

// ---- the door

struct Door {
  UniqueFd listener;
  UniqueFd door_lives;  // ends with the door
  UniqueFd accepted;    // where who has accepted tells the door so
};

struct Accepted {
  pid_t pid;
  uid_t uid;
};

// The life of a process that waits in accept, and then of the connection's.
[[noreturn]] void Accept(Door& door) {
  UniqueFd user;
  while (!user.valid()) {
    std::array<pollfd, 3> polled{pollfd{door.listener.get(), POLLIN, 0},
                                 pollfd{door.door_lives.get(), POLLIN, 0}, pollfd{kDoorControl, 0, 0}};
    ::poll(polled.data(), polled.size(), -1);
    if (polled[1].revents != 0 || polled[2].revents != 0) ::_exit(0);
    user.reset(::accept4(door.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!user.valid() && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      ::poll(nullptr, 0, kRetryMs);  // the machine is out of files or of memory
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  std::array<int, 2> ends{};
  if (::getsockopt(user.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    ::_exit(0);
  const Accepted accepted{::getpid(), peer.uid};
  if (::write(door.accepted.get(), &accepted, sizeof accepted) != sizeof accepted) ::_exit(0);
  door = Door{};
  const bool told = Tell({DoorSays::kOpened, peer.pid, peer.uid, peer.gid, {}}, ends[1]);
  ::close(ends[1]);
  ::close(kDoorControl);
  if (told) Relay(user.get(), ends[0]);
  // What has not been received, and what was not memory, goes as the process does: whom that holds up, it is nobody else.
  ::_exit(0);
}

// 0, or the exit status: musterd knows why.
int Listen(const char* path, UniqueFd* listener) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length == 0 || length >= sizeof address.sun_path)
    return Fail(DoorSays::kFailed, "'%s' is not a usable path for a socket", path);
  std::memcpy(address.sun_path, path, length + 1);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  listener->reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // A socket file without a listener behind it is left from a killed musterd; one with a listener is another musterd.
  int found = 0;
  for (int waited = 0;; waited += kRetryMs) {
    const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    found = ::connect(probe.get(), name, sizeof address) != 0 ? errno : 0;
    if (found != 0 && found != EAGAIN) break;
    if (waited >= kTakenMs) return Fail(DoorSays::kTaken, "another musterd is listening on it");
    pollfd musterd{kDoorControl, 0, 0};
    if (::poll(&musterd, 1, kRetryMs) > 0) return 1;
  }
  struct stat left {};
  if (found == ECONNREFUSED && ::lstat(path, &left) == 0 && S_ISSOCK(left.st_mode)) ::unlink(path);
  if (!listener->valid() || ::bind(listener->get(), name, sizeof address) != 0)
    return Fail(DoorSays::kFailed, "bind: %s", std::strerror(errno));
  // Every user may connect: what they may do is decided by who they are (SO_PEERCRED).
  if (::chmod(path, 0666) != 0) return Fail(DoorSays::kFailed, "chmod: %s", std::strerror(errno));
  if (::listen(listener->get(), 1024) != 0)
    return Fail(DoorSays::kFailed, "listen: %s", std::strerror(errno));
  return 0;
}

int Run(const char* path) {
  Door door;
  if (const int failed = Listen(path, &door.listener); failed != 0) return failed;
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  const UniqueFd ended(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  std::array<int, 2> lives{};
  std::array<int, 2> accepted{};
  if (!ended.valid() || ::pipe2(lives.data(), O_CLOEXEC) != 0 || ::pipe2(accepted.data(), O_CLOEXEC) != 0)
    return Fail(DoorSays::kFailed, "pipe: %s", std::strerror(errno));
  door.door_lives.reset(lives[0]);
  door.accepted.reset(accepted[1]);
  UniqueFd alive(lives[1]);
  UniqueFd taken(accepted[0]);
  ::fcntl(taken.get(), F_SETFL, O_NONBLOCK);
  if (!Tell({DoorSays::kListening, 0, 0, 0, {}})) return 0;

  std::unordered_map<pid_t, uid_t> connections;
  size_t waiting = 0;
  const auto read_accepted = [&] {
    for (Accepted one{}; ::read(taken.get(), &one, sizeof one) == sizeof one; --waiting)
      connections[one.pid] = one.uid;
  };
  while (true) {
    read_accepted();
    for (pid_t pid = 0; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) {
      read_accepted();  // what it had to tell it has told before its end
      const auto connection = connections.find(pid);
      if (connection == connections.end()) {
        --waiting;  // it had not come to tell of a connection
        continue;
      }
      if (!Tell({DoorSays::kEnded, 0, connection->second, 0, {}})) return 0;
      connections.erase(connection);
    }
    bool short_of = false;
    while (waiting < kWaiting && !short_of) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        alive.reset();
        taken.reset();
        Accept(door);
      }
      short_of = pid < 0;
      if (pid > 0) ++waiting;
    }
    std::array<pollfd, 3> polled{pollfd{taken.get(), POLLIN, 0}, pollfd{ended.get(), POLLIN, 0},
                                 pollfd{kDoorControl, 0, 0}};
    ::poll(polled.data(), polled.size(), short_of ? kRetryMs : -1);
    if (polled[2].revents != 0) return 0;
    signalfd_siginfo info{};
    while (::read(ended.get(), &info, sizeof info) > 0) {
    }
  }
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  int type = 0;
  socklen_t size = sizeof type;
  if (argc != 2 || ::getsockopt(muster::kDoorControl, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET) {
    std::fputs("usage: muster-door SOCKET (musterd starts it)\n", stderr);
    return 2;
  }
  ::fcntl(muster::kDoorControl, F_SETFD, FD_CLOEXEC);
  return muster::Run(argv[1]);
}
