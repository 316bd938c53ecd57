// Joined links: the daemons of one process, or a test in a daemon's place, speak as over daemon/rpc, without gRPC and MUNGE.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "daemon/link/link.h"

namespace muster {

// Thread-safe. Lives longer than all that dials or listens on it. Events are called with its lock, by whoever sends, closes,
// releases or dials: they must not call it, as those that only post to a loop do not.
class LinkNet {
 public:
  LinkNet() = default;
  ~LinkNet();
  LinkNet(const LinkNet&) = delete;
  LinkNet& operator=(const LinkNet&) = delete;

  // Opens links from this host to the host that it is given as `node`.
  DialLink DialFrom(const std::string& host);
  // Links to this host are accepted until what is returned is destroyed; then they end.
  std::shared_ptr<void> Listen(const std::string& host, AcceptLink accept);

  // What links between two hosts are to carry waits, also that an end has closed, and that nobody listens. Counted: it goes on
  // when it has been released as often as it has been held.
  void Hold(const std::string& a, const std::string& b);
  void Release(const std::string& a, const std::string& b);
  // Says something to `dialler` in the place of `listener`, on the newest link between them. False: there is none.
  bool SayFor(const std::string& listener, const std::string& dialler, std::string payload);
  // Grows with all that goes over links.
  [[nodiscard]] uint64_t activity() const { return activity_; }

 private:
  class End;
  struct Pair;
  struct Listener;
  using Hosts = std::pair<std::string, std::string>;
  static Hosts Between(const std::string& a, const std::string& b) { return std::minmax(a, b); }

  void Send(Pair& pair, size_t from, std::string payload);
  void Close(Pair& pair, size_t from, const std::string& why, bool sent_first);
  void Connect(Pair& pair);
  void Flush(Pair& pair);
  void Forget();
  [[nodiscard]] bool Held(const Pair& pair) const;

  std::atomic<uint64_t> activity_{0};
  std::mutex mutex_;
  std::map<Hosts, int> held_;
  std::map<std::string, std::shared_ptr<Listener>> listeners_;
  std::list<std::shared_ptr<Pair>> pairs_;
};

}  // namespace muster
