// One direction of a pair, measured with RDMA: writes of one sender into the receiver's memory, over several queue pairs.
//
// Both sides hold a TCP connection, over which they tell each other where their queue pairs are; when it ends, the measurement does.
// There is no librdmacm in it: a connection's GID, traffic class and timeouts are those that NCCL would have.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/preflight/rail.h"

namespace muster::preflight {

// This process's memory, completion queue and queue pairs on a port. Not thread-safe.
class VerbsEndpoint {
 public:
  // kNotFound: no such device. kDenied: its files are not this user's, or memory cannot be locked. kUnavailable: the port is down.
  static Result<VerbsEndpoint> Open(const VerbsPort& port);
  VerbsEndpoint(VerbsEndpoint&&) noexcept;
  VerbsEndpoint& operator=(VerbsEndpoint&&) noexcept;
  ~VerbsEndpoint();

  // Both sides, over the connected socket: kUnavailable when the other side has no endpoint, or does not answer in 2 s.
  Status Connect(int socket);
  // The sender, before Write: how long a write of a few bytes takes, in us: half of the shortest round trip of as many as fit in `time`;
  // 0: none did. The other side is in AnswerPings meanwhile. kUnavailable as for Write.
  Result<double> Ping(std::chrono::milliseconds time);
  // The receiver: answers until the socket has something to read or ends, or no ping came for 2 s after `time`.
  void AnswerPings(int socket, std::chrono::milliseconds time);
  // The sender: Mbit/s of payload, counted once the first fifth of the time is over. `pace`: bytes a second that the link is given at
  // most, with headers; 0: as many as it takes. kUnavailable says how the first write failed.
  Result<double> Write(std::chrono::milliseconds duration, uint64_t pace);

 private:
  struct State;
  explicit VerbsEndpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Opens the port and lets go of it again, as this process's user. Below `root` are /sys and /dev: "", or the copy of another host's.
NoVerbs TryVerbs(const VerbsPort& port, const std::string& root);

// Tells the other side that there will be no endpoint here, and why; for Connect there.
void RefuseEndpoint(int socket, const std::string& why);

}  // namespace muster::preflight
