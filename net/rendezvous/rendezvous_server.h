// The key-value store through which the members of one round tell one another why they end, and find each other where there
// is no gang to tell them. Rank 0 runs it. It holds small values in memory and serves one round only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/rendezvous/socket.h"

namespace muster::rendezvous {

struct ServerOptions {
  // The port to listen on, on every address of this host. 0: the kernel chooses.
  std::uint16_t port = 0;
  // Names the round. A request for a key of another one is refused, so that a member left over from an old generation, or
  // who does not know a secret one, can neither read nor write here.
  std::string round;
  // What this server keeps and serves at most. Beyond it requests are refused and connections closed.
  std::size_t max_entries = 4096;
  std::size_t max_connections = 4096;
};

// A running server: a thread of its own from Start until the destructor. Anybody who reaches the port can
// connect; what is kept of them is bounded, and a key is written once: a second writer with another value (two
// processes that claim one rank) is refused.
class Server {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Server>> Start(const ServerOptions& options);

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  // Stops at once: requests that still wait see the connection close.
  ~Server();

  [[nodiscard]] std::uint16_t port() const;

  // Waits until nobody is connected, which says that all have read their answers. False: somebody still is at `deadline`.
  [[nodiscard]] bool LeftBy(Deadline deadline);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The key as it travels: that of the round, so that server and client cannot differ about it.
[[nodiscard]] std::string RoundKey(const std::string& round, const std::string& key);

}  // namespace muster::rendezvous
