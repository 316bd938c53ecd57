#include "net/rendezvous/client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "net/rendezvous/rendezvous_server.h"

namespace muster::rendezvous {
namespace {

// That a get can wait.
constexpr std::chrono::milliseconds kLongest(std::numeric_limits<std::int32_t>::max());

}  // namespace

Client::Client(ClientOptions options, UniqueFd fd) : options_(std::move(options)), fd_(std::move(fd)) {}

Result<Client> Client::Connect(const ClientOptions& options) {
  Result<UniqueFd> fd = ConnectUntil(options.host, options.port, options.deadline);
  if (!fd) return fd.error();
  return Client(options, std::move(*fd));
}

void Client::SetDeadline(Deadline deadline, std::chrono::milliseconds grace) {
  options_.deadline = deadline;
  options_.grace = grace;
}

Status Client::Set(const std::string& key, const std::string& value) {
  Result<std::string> reply = Call(Request(MessageType::kSet, key, value), MessageType::kStored);
  return reply ? Status() : reply.error();
}

Status Client::Will(const std::string& key, const std::string& value) {
  Result<std::string> reply = Call(Request(MessageType::kWill, key, value), MessageType::kStored);
  return reply ? Status() : reply.error();
}

Result<std::string> Client::Get(const std::string& key) {
  const auto left =
      std::chrono::floor<std::chrono::milliseconds>(options_.deadline - std::chrono::steady_clock::now());
  Message request = Request(MessageType::kGet, key, {});
  request.patience = std::clamp(left, std::chrono::milliseconds(0), kLongest);
  return Call(request, MessageType::kValue);
}

Status Client::Watch(const std::string& key) {
  Message request = Request(MessageType::kGet, key, {});
  request.patience = kLongest;
  watched_ = key;
  return Send(request);
}

Result<std::optional<std::string>> Client::Watched() {
  for (;;) {
    Result<std::optional<Message>> next = Next();
    if (!next) return Lost(Errc::kInvalid, watched_, next.error().message);
    if (next->has_value() && (*next)->type == MessageType::kValue) {
      watched_.clear();
      return std::optional(std::move((*next)->value));
    }
    if (next->has_value()) {  // it was not written in all that time
      if (Status again = Watch(std::string(watched_)); !again) return again.error();
      continue;
    }
    pollfd entry{fd_.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) return std::optional<std::string>();
    if (Status more = Receive(std::chrono::steady_clock::now()); !more)
      return Lost(Errc::kUnavailable, watched_, more.error().message);
  }
}

Result<std::string> Client::LocalAddress() const {
  return rendezvous::LocalAddress(fd_.get());
}

Message Client::Request(MessageType type, const std::string& key, const std::string& value) const {
  return {type, RoundKey(options_.round, key), value, {}};
}

Error Client::Failed(Errc code, std::string key, const std::string& why) const {
  if (const std::string round = RoundKey(options_.round, ""); key.starts_with(round))
    key.erase(0, round.size());
  return {code, "rendezvous with rank 0 at " + options_.host + " port " + std::to_string(options_.port) +
                    ", key '" + key + "': " + why};
}

Error Client::Lost(Errc code, const std::string& key, const std::string& why) {
  good_ = false;
  return Failed(code, key, why);
}

Status Client::Send(const Message& request) {
  Result<std::vector<std::byte>> bytes = Encode(request);
  if (!bytes) return Failed(Errc::kInvalid, request.key, bytes.error().message);
  if (Status sent = SendAll(fd_.get(), *bytes, options_.deadline + options_.grace); !sent)
    return Lost(Errc::kUnavailable, request.key, sent.error().message);
  return {};
}

Result<std::optional<Message>> Client::Next() {
  Result<std::optional<Decoded>> decoded = Decode(in_);
  if (!decoded) return decoded.error();
  if (!decoded->has_value()) return std::optional<Message>();
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>((*decoded)->bytes));
  return std::optional(std::move((*decoded)->message));
}

Status Client::Receive(Deadline deadline) {
  std::array<std::byte, 4096> chunk;
  Result<std::size_t> got = ReceiveSome(fd_.get(), chunk, deadline);
  if (!got) return got.error();
  in_.insert(in_.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(*got));
  return {};
}

Result<std::string> Client::Call(const Message& request, MessageType wanted) {
  if (Status sent = Send(request); !sent) return sent.error();
  for (;;) {
    Result<std::optional<Message>> reply = Next();
    if (!reply) return Lost(Errc::kInvalid, request.key, reply.error().message);
    if (reply->has_value()) {
      Message& message = **reply;
      // The watched key's value was on its way.
      const bool watched = !watched_.empty() && message.type == MessageType::kValue;
      watched_.clear();
      if (watched) continue;
      if (message.type == wanted) return std::move(message.value);
      if (message.type == MessageType::kRefused)
        return Failed(Errc::kUnavailable, request.key, message.value);
      return Lost(Errc::kInvalid, request.key, "an answer to another question");
    }
    // The server's own "nobody wrote it in time" says more than our timeout, so leave it a moment to arrive.
    if (Status more = Receive(options_.deadline + options_.grace); !more)
      return Lost(Errc::kUnavailable, request.key, more.error().message);
  }
}

}  // namespace muster::rendezvous
