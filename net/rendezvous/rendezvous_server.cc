#include "net/rendezvous/rendezvous_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "net/rendezvous/rendezvous_message.h"
#include "net/rendezvous/socket.h"

namespace muster::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// One member's connection. It has one request in work at most: bytes that follow it wait in `in`, which stays
// below one message because reading stops while a reply is due, and a request ends the wait of a get before it.
struct Connection {
  UniqueFd fd;
  std::vector<std::byte> in;
  std::vector<std::byte> out;
  std::size_t sent = 0;
  std::string waiting_for;  // key of a get that has no value yet
  Deadline patience;
  std::string will_key;  // empty: it has none
  std::string will_value;
  bool close_after_reply = false;
  bool dead = false;

  [[nodiscard]] bool waiting() const { return !waiting_for.empty(); }
  [[nodiscard]] bool replying() const { return sent < out.size(); }
};

void Reply(Connection& connection, MessageType type, std::string value) {
  connection.waiting_for.clear();
  Result<std::vector<std::byte>> bytes = Encode({type, {}, std::move(value), {}});
  if (!bytes) {  // values were checked when they came in, so this would be our own mistake
    connection.dead = true;
    return;
  }
  connection.out = std::move(*bytes);
  connection.sent = 0;
}

void Refuse(Connection& connection, std::string why) {
  Reply(connection, MessageType::kRefused, std::move(why));
}

void Flush(Connection& connection) {
  while (connection.replying()) {
    const auto rest = std::span(connection.out).subspan(connection.sent);
    const ssize_t sent = ::send(connection.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      connection.sent += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      connection.dead = true;
      return;
    }
  }
  connection.dead |= connection.close_after_reply;
}

// Reads what is there, up to one message's worth.
void Fill(Connection& connection) {
  std::array<std::byte, 4096> chunk;
  while (connection.in.size() < kHeaderBytes + kMaxKeyBytes + kMaxValueBytes) {
    const ssize_t got = ::recv(connection.fd.get(), chunk.data(), chunk.size(), 0);
    if (got > 0) {
      connection.in.insert(connection.in.end(), chunk.begin(), chunk.begin() + got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    connection.dead = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    return;
  }
}

}  // namespace

std::string RoundKey(const std::string& round, const std::string& key) {
  return round + "/" + key;
}

class Server::Impl {
 public:
  Impl(ServerOptions options, UniqueFd listener, UniqueFd stop, std::uint16_t port)
      : options_(std::move(options)), listener_(std::move(listener)), stop_(std::move(stop)), port_(port) {
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    while (::write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }

  [[nodiscard]] bool LeftBy(Deadline deadline) {
    std::unique_lock lock(served_mutex_);
    return served_changed_.wait_until(lock, deadline, [this] { return served_ == 0; });
  }

 private:
  void Run() {
    for (;;) {
      std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}, {Full() ? -1 : listener_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        entries.push_back(
            {connection.fd.get(), static_cast<short>(connection.replying() ? POLLOUT : POLLIN), 0});
      }
      if (::poll(entries.data(), entries.size(), Timeout()) < 0 && errno != EINTR) return;
      if (entries[0].revents != 0) return;
      std::size_t index = 2;
      for (Connection& connection : connections_) {
        if (entries[index++].revents != 0) Serve(connection);
      }
      GiveUpOnLate();
      Bury();
      if (entries[1].revents != 0) Accept();
      const std::lock_guard lock(served_mutex_);
      served_ = connections_.size();
      served_changed_.notify_all();
    }
  }

  void Bury() {
    std::list<Connection> dead;
    for (auto next = connections_.begin(); next != connections_.end();) {
      const auto connection = next++;
      if (connection->dead) dead.splice(dead.end(), connections_, connection);
    }
    if (!dead.empty()) out_of_descriptors_ = false;
    for (Connection& connection : dead) {
      if (connection.will_key.empty() || entries_.contains(connection.will_key) || StoreIsFull()) continue;
      Store(std::move(connection.will_key), std::move(connection.will_value));
    }
  }

  // Milliseconds until the first waiting get loses patience; -1 without one.
  [[nodiscard]] int Timeout() const {
    int timeout = -1;
    for (const Connection& connection : connections_) {
      if (!connection.waiting()) continue;
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(connection.patience - Clock::now()).count();
      const int bounded = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
      timeout = timeout < 0 ? bounded : std::min(timeout, bounded);
    }
    return timeout;
  }

  [[nodiscard]] bool Full() const {
    return out_of_descriptors_ || connections_.size() >= options_.max_connections;
  }

  void Accept() {
    while (!Full()) {
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        out_of_descriptors_ = errno == EMFILE || errno == ENFILE;
        return;
      }
      connections_.push_back(Connection{.fd = std::move(fd)});
    }
  }

  void Serve(Connection& connection) {
    if (connection.replying()) {
      Flush(connection);
    } else {
      Fill(connection);
    }
    // Bytes behind a request: nothing would wake us for them, so look now.
    while (!connection.dead && !connection.replying() && HandleOne(connection)) Flush(connection);
  }

  // Whether there was a request, or something that cannot become one.
  bool HandleOne(Connection& connection) {
    Result<std::optional<Decoded>> decoded = Decode(connection.in);
    if (!decoded) {
      // The stream has lost its frame: say why, then close.
      Refuse(connection, decoded.error().message);
      connection.close_after_reply = true;
      return true;
    }
    if (!decoded->has_value()) return false;
    Decoded& request = **decoded;
    connection.in.erase(connection.in.begin(),
                        connection.in.begin() + static_cast<std::ptrdiff_t>(request.bytes));
    Handle(connection, std::move(request.message));
    return true;
  }

  void Handle(Connection& connection, Message request) {
    connection.waiting_for.clear();
    const bool is_request = request.type == MessageType::kSet || request.type == MessageType::kGet ||
                            request.type == MessageType::kWill;
    if (!is_request) {
      connection.close_after_reply = true;
      return Refuse(connection, "a reply where a request belongs");
    }
    if (!request.key.starts_with(RoundKey(options_.round, ""))) {
      // Which one it serves is no business of whoever asks.
      return Refuse(connection, "this store serves another round than key '" + request.key + "' is of");
    }
    if (request.type == MessageType::kGet) return Get(connection, request);
    if (request.type == MessageType::kSet) return Set(connection, request);
    connection.will_key = std::move(request.key);
    connection.will_value = std::move(request.value);
    Reply(connection, MessageType::kStored, {});
  }

  void Set(Connection& connection, Message& request) {
    const auto found = entries_.find(request.key);
    if (found != entries_.end()) {
      if (found->second == request.value) return Reply(connection, MessageType::kStored, {});
      return Refuse(connection, "key '" + Name(request.key) +
                                    "' is already written with another value; "
                                    "do two processes have the same RANK?");
    }
    if (StoreIsFull()) {
      return Refuse(connection, "the store is full (" + std::to_string(options_.max_entries) + " entries)");
    }
    Reply(connection, MessageType::kStored, {});
    Store(std::move(request.key), std::move(request.value));
  }

  // A key of this round, as a message names it.
  [[nodiscard]] std::string Name(const std::string& key) const {
    return key.substr(RoundKey(options_.round, "").size());
  }

  [[nodiscard]] bool StoreIsFull() const { return entries_.size() >= options_.max_entries; }

  void Store(std::string key, std::string value) {
    for (Connection& other : connections_) {
      if (other.waiting_for == key) {
        Reply(other, MessageType::kValue, value);
        Flush(other);
      }
    }
    entries_.emplace(std::move(key), std::move(value));
  }

  void Get(Connection& connection, Message& request) {
    const auto found = entries_.find(request.key);
    if (found != entries_.end()) return Reply(connection, MessageType::kValue, found->second);
    connection.waiting_for = std::move(request.key);
    connection.patience = Clock::now() + request.patience;
  }

  void GiveUpOnLate() {
    for (Connection& connection : connections_) {
      if (!connection.waiting() || Clock::now() < connection.patience) continue;
      Refuse(connection, "nobody wrote key '" + Name(connection.waiting_for) + "' in time");
      Flush(connection);
    }
  }

  const ServerOptions options_;
  const UniqueFd listener_;
  const UniqueFd stop_;
  const std::uint16_t port_;
  std::list<Connection> connections_;
  std::map<std::string, std::string> entries_;
  bool out_of_descriptors_ = false;  // until a connection ends: the listener would wake us for nothing
  std::mutex served_mutex_;          // guards `served_`
  std::condition_variable served_changed_;
  std::size_t served_ = 0;  // connections
  std::thread thread_;      // last: it uses all of the above
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
std::uint16_t Server::port() const {
  return impl_->port();
}
bool Server::LeftBy(Deadline deadline) {
  return impl_->LeftBy(deadline);
}

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  Result<UniqueFd> listener = Listen(options.port);
  if (!listener) return listener.error();
  Result<std::uint16_t> port = LocalPort(listener->get());
  if (!port) return port.error();
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) {
    return Error{Errc::kUnavailable, "rendezvous: eventfd: " + std::generic_category().message(errno)};
  }
  return std::unique_ptr<Server>(
      new Server(std::make_unique<Impl>(options, std::move(*listener), std::move(stop), *port)));
}

}  // namespace muster::rendezvous
