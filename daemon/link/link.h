// Ordered message links between daemons: what the daemon needs of them, whatever carries them. daemon/rpc carries them over
// gRPC, and alone knows it; tests join two ends in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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

// What a link tells its user, on threads of its own, one call at a time. `closed` comes exactly once and is the last call.
struct LinkEvents {
  std::function<void(std::string)> message;
  std::function<void(const std::string& why)> closed;
};

// Opens a link to the daemon of `node` at `address` ("host:port"). Returns at once; failure is told by `closed`. What may
// block (a MUNGE credential) is given to `elsewhere` to be run on another thread; what is sent meanwhile waits.
using RunElsewhere = std::function<void(std::function<void()>)>;
using DialLink = std::function<std::shared_ptr<Link>(const std::string& node, const std::string& address,
                                                     LinkEvents events, const RunElsewhere& elsewhere)>;

// Another daemon has opened a link and proven who it is. Returns what to call for its messages. Any thread.
using AcceptLink = std::function<LinkEvents(std::shared_ptr<Link>)>;

// A question of the muster command, as asked. `uid` is the asker's, proven.
struct AskedBy {
  uint32_t uid = 0;
};
// Answers a serialized Question with a serialized Answer through `reply`, from any thread, once.
using AnswerQuestion =
    std::function<void(AskedBy who, std::string question, std::function<void(std::string)> reply)>;

}  // namespace muster
