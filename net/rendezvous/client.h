// One member's side of the rendezvous: write what it has to say, wait for what the others said.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
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
  // How long after that the server's own word on why may still come.
  std::chrono::milliseconds grace{500};
};

// A connection to the round's server. Not thread-safe. An error is kUnavailable where the server has refused the request,
// as for a key that nobody wrote in time, and where it cannot be reached.
class Client {
 public:
  // Tries until the deadline: rank 0 may start later than this member.
  [[nodiscard]] static Result<Client> Connect(const ClientOptions& options);

  // What is asked from now on has this deadline.
  void SetDeadline(Deadline deadline, std::chrono::milliseconds grace);

  // Writes a key that nobody has written yet (or with this same value).
  [[nodiscard]] Status Set(const std::string& key, const std::string& value);

  // The value of a key, waiting for its writer until the deadline.
  [[nodiscard]] Result<std::string> Get(const std::string& key);

  // Writes a key when this connection ends, however it ends, unless somebody has written it by then.
  [[nodiscard]] Status Will(const std::string& key, const std::string& value);

  // Asks for a key and does not wait. The next call that is not Watched is a Set or a Will, and ends it.
  [[nodiscard]] Status Watch(const std::string& key);
  // The value that was asked for, once it has come. Returns at once.
  [[nodiscard]] Result<std::optional<std::string>> Watched();

  // Whether the server has answered all calls so far. Once it has not, this is of no further use.
  [[nodiscard]] bool good() const { return good_; }

  // The address from which this member reaches rank 0, in numbers.
  [[nodiscard]] Result<std::string> LocalAddress() const;

 private:
  Client(ClientOptions options, UniqueFd fd);
  // Sends a request and waits for the reply, which must be of type `wanted`.
  [[nodiscard]] Result<std::string> Call(const Message& request, MessageType wanted);
  [[nodiscard]] Status Send(const Message& request);
  [[nodiscard]] Message Request(MessageType type, const std::string& key, const std::string& value) const;
  [[nodiscard]] Error Failed(Errc code, std::string key, const std::string& why) const;
  // The same, for good.
  [[nodiscard]] Error Lost(Errc code, const std::string& key, const std::string& why);
  // The next message, if it is here.
  [[nodiscard]] Result<std::optional<Message>> Next();
  // More of it, or an error at the deadline.
  [[nodiscard]] Status Receive(Deadline deadline);

  ClientOptions options_;
  UniqueFd fd_;
  std::vector<std::byte> in_;
  std::string watched_;  // the key; empty: none
  bool good_ = true;
};

}  // namespace muster::rendezvous
