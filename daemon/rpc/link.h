// Authenticated, ordered message links between daemons, over gRPC streams. The rest of the daemon sees no
// gRPC.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace muster {

// One end of a link. All calls may be made from any thread; a message sent on a closed link is dropped.
class Link {
 public:
  virtual ~Link() = default;
  virtual void Send(std::string payload) = 0;
  // At once: what has not been written yet is lost.
  virtual void Close(const std::string& why) = 0;
  // After all that was sent has been written.
  virtual void CloseWhenSent(const std::string& why) = 0;
  // The session's key, once a message has come in; shared with the other end only.
  [[nodiscard]] virtual std::string key() const = 0;
};

// What a link tells its user, on gRPC's threads, one call at a time. `closed` comes exactly once and is the
// last call.
struct LinkEvents {
  std::function<void(std::string)> message;
  std::function<void(const std::string& why)> closed;
};

// Opens a link to the daemon of `node` at `address` ("host:port"). Returns at once; failure is told by
// `closed`. What may block (a MUNGE credential) is given to `elsewhere` to be run on another thread; what is
// sent meanwhile waits.
using RunElsewhere = std::function<void(std::function<void()>)>;
std::shared_ptr<Link> OpenLink(const std::string& node, const std::string& address, LinkEvents events,
                               const RunElsewhere& elsewhere);
// That, or what a test has in its place.
using DialLink = std::function<std::shared_ptr<Link>(const std::string& node, const std::string& address,
                                                     LinkEvents events, const RunElsewhere& elsewhere)>;

// A question of the muster command, as asked. `uid` is the asker's, proven.
struct AskedBy {
  uint32_t uid = 0;
};

struct ServerOptions {
  std::string address;  // "host:port"
  std::string self;     // this node's name
  uint32_t service_uid = 0;
  // For how long the other end may leave what was sent without an answer of its kernel's. Until then a link to a host that is
  // dead stays, so it should be longer than whatever finds that out: a link that has ended means that its host lives.
  std::chrono::milliseconds dead{20'000};
};

// Serves links and questions. Thread-safe.
class Server {
 public:
  // A daemon has opened a link and proven who it is. Returns what to call for its messages.
  using Accept = std::function<LinkEvents(std::shared_ptr<Link>)>;
  // Answers a serialized Question with a serialized Answer through `reply`, from any thread, once.
  using Ask = std::function<void(AskedBy, std::string question, std::function<void(std::string)> reply)>;

  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options, Accept accept, Ask ask);
  virtual ~Server() = default;
};

}  // namespace muster
