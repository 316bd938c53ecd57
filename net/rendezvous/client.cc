#include "net/rendezvous/client.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "net/rendezvous/rendezvous_server.h"

namespace muster::rendezvous {

Client::Client(ClientOptions options, UniqueFd fd) : options_(std::move(options)), fd_(std::move(fd)) {}

Result<Client> Client::Connect(const ClientOptions& options) {
  Result<UniqueFd> fd = ConnectUntil(options.host, options.port, options.deadline);
  if (!fd) return fd.error();
  return Client(options, std::move(*fd));
}

Status Client::Set(const std::string& key, const std::string& value) {
  Result<std::string> reply =
      Call({MessageType::kSet, RoundKey(options_.round, key), value, {}}, MessageType::kStored);
  if (!reply) return reply.error();
  return {};
}

Result<std::string> Client::Get(const std::string& key) {
  const auto left =
      std::chrono::floor<std::chrono::milliseconds>(options_.deadline - std::chrono::steady_clock::now());
  const auto patience = std::clamp<std::int64_t>(left.count(), 0, std::numeric_limits<std::int32_t>::max());
  return Call({MessageType::kGet, RoundKey(options_.round, key), {}, std::chrono::milliseconds(patience)},
              MessageType::kValue);
}

Result<std::string> Client::LocalAddress() const {
  return rendezvous::LocalAddress(fd_.get());
}

Result<std::string> Client::Call(const Message& request, MessageType wanted) {
  const auto failed = [&](Errc code, const std::string& why) {
    return Error{code, "rendezvous with rank 0 at " + options_.host + " port " +
                           std::to_string(options_.port) + ", key '" + request.key + "': " + why};
  };
  Result<std::vector<std::byte>> bytes = Encode(request);
  if (!bytes) return failed(Errc::kInvalid, bytes.error().message);
  // The server's own "nobody wrote it in time" says more than our timeout, so leave it a moment to arrive.
  const Deadline deadline = options_.deadline + std::chrono::milliseconds(500);
  if (Status sent = SendAll(fd_.get(), *bytes, deadline); !sent) {
    return failed(Errc::kUnavailable, sent.error().message);
  }
  std::array<std::byte, 4096> chunk;
  for (;;) {
    Result<std::optional<Decoded>> reply = Decode(in_);
    if (!reply) return failed(Errc::kInvalid, reply.error().message);
    if (reply->has_value()) {
      Decoded& decoded = **reply;
      in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(decoded.bytes));
      if (decoded.message.type == wanted) return std::move(decoded.message.value);
      if (decoded.message.type == MessageType::kRefused)
        return failed(Errc::kUnavailable, decoded.message.value);
      return failed(Errc::kInvalid, "an answer to another question");
    }
    Result<std::size_t> got = ReceiveSome(fd_.get(), chunk, deadline);
    if (!got) return failed(Errc::kUnavailable, got.error().message);
    in_.insert(in_.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(*got));
  }
}

}  // namespace muster::rendezvous
