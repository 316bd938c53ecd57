// One member's side of the rendezvous: write what it has to say, wait for what the others said.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "net/rendezvous/rendezvous_message.h"
#include "net/rendezvous/socket.h"

namespace muster::rendezvous {

struct ClientOptions {
  std::string host;
  std::uint16_t port = 0;
  // As the server's: keys of this round only.
  std::string round;
  // All of the rendezvous is over by then, or it fails.
  Deadline deadline;
};

// A connection to the round's server. Not thread-safe. After an error it is of no further use.
class Client {
 public:
  // Tries until the deadline: rank 0 may start later than this member.
  [[nodiscard]] static Result<Client> Connect(const ClientOptions& options);

  // Writes a key that nobody has written yet (or with this same value).
  [[nodiscard]] Status Set(const std::string& key, const std::string& value);

  // The value of a key, waiting for its writer until the deadline.
  [[nodiscard]] Result<std::string> Get(const std::string& key);

  // The address from which this member reaches rank 0, in numbers.
  [[nodiscard]] Result<std::string> LocalAddress() const;

 private:
  Client(ClientOptions options, UniqueFd fd);
  // Sends a request and waits for the reply, which must be of type `wanted`.
  [[nodiscard]] Result<std::string> Call(const Message& request, MessageType wanted);

  ClientOptions options_;
  UniqueFd fd_;
  std::vector<std::byte> in_;
};

}  // namespace muster::rendezvous
