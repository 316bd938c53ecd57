// musterd's SOCK_SEQPACKET socket: packets with at most one descriptor, and who sent them.
//
// muster-door listens, accepts and receives (daemon/door): nothing here has a user's connection, or a descriptor of a user's
// that is not memory, so that to close it can hold nothing up.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/worker.h"
#include "daemon/door/door_report.h"

namespace muster {

struct Packet {
  std::vector<char> bytes;  // at most wire::kMaxMessage + 1
  UniqueFd fd;              // of memory (memfd_create, tmpfs): what else a peer passes does not come
};

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// One peer. Belongs to the loop's thread.
class LocalConnection {
 public:
  LocalConnection(Loop& loop, UniqueFd fd, PeerCredentials peer)
      : loop_(loop), fd_(std::move(fd)), peer_(peer) {}
  ~LocalConnection();
  LocalConnection(const LocalConnection&) = delete;
  LocalConnection& operator=(const LocalConnection&) = delete;

  [[nodiscard]] const PeerCredentials& peer() const { return peer_; }
  [[nodiscard]] bool open() const { return fd_.valid(); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  // Sends a packet, with a copy of `fd` when it is not -1. A peer that does not read is closed once it is
  // kMaxQueued packets behind. Returns false when the connection is or gets closed.
  bool Send(const void* packet, size_t size, int fd = -1);
  // From now on what the peer passes is taken, if it is memory. Before, no descriptor comes with a packet.
  void TakeMemory();
  // Closes after what is queued has been sent or the peer is gone.
  void CloseWhenSent();

  static constexpr size_t kMaxQueued = 1024;

 private:
  friend class LocalSocket;
  struct Queued {
    std::vector<char> bytes;
    UniqueFd fd;
  };
  void Flush();
  void WatchEvents();

  Loop& loop_;
  UniqueFd fd_;
  PeerCredentials peer_;
  std::deque<Queued> queue_;
  bool closing_ = false;
  bool orphan_ = false;  // of an ordinary user, and let in by a door that is gone
  std::function<void(uint32_t)> ready_;
};

// The listening socket. Everything on the loop's thread.
class LocalSocket {
 public:
  struct Handlers {
    // May move the descriptor out of the packet.
    std::function<void(LocalConnection&, Packet&)> packet;
    std::function<void(LocalConnection&)> closed;  // once, also when this side closes
  };
  // Connections of all ordinary users together, and of each; root's do not count. One counts until nothing is left of it, also
  // of its process at the door.
  static constexpr size_t kMaxConnections = 8192;
  static constexpr size_t kMaxConnectionsPerUser = 1024;

  // `door`: where the program muster-door is. What packets bring and nobody takes is closed by `chores`: it may be large.
  static Result<std::unique_ptr<LocalSocket>> Listen(Loop& loop, const std::string& path,
                                                     const std::string& door, std::shared_ptr<Worker> chores,
                                                     Handlers handlers);
  ~LocalSocket();

  void Close(LocalConnection& connection);

 private:
  LocalSocket(Loop& loop, std::string path, std::string door, std::shared_ptr<Worker> chores,
              Handlers handlers)
      : loop_(loop),
        path_(std::move(path)),
        door_(std::move(door)),
        chores_(std::move(chores)),
        handlers_(std::move(handlers)) {}
  Status StartDoor();
  void WatchDoor();
  void OnDoor();
  void OnReport(const DoorReport& report, UniqueFd fd);
  void DoorEnded(const std::string& why);
  void Uncount(uid_t uid);
  void Open(const PeerCredentials& peer, UniqueFd fd);
  void Ready(int key, uint32_t events);
  bool ReadOne(LocalConnection& connection);

  Loop& loop_;
  std::string path_;
  std::string door_;
  std::shared_ptr<Worker> chores_;
  Handlers handlers_;
  UniqueFd control_;
  Loop::Time door_started_;
  bool listens_ = false;
  std::unordered_map<int, std::shared_ptr<LocalConnection>> connections_;
  std::unordered_map<uid_t, size_t> per_user_;  // but root
  size_t users_ = 0;                            // the sum of those
  Loop::TimerId resume_ = 0;
};

}  // namespace muster
