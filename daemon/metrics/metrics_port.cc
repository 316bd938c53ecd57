#include "daemon/metrics/metrics_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace muster {
namespace {

constexpr int kOk = 200;
constexpr int kMalformed = 400;
constexpr int kNotFound = 404;
constexpr int kNotAllowed = 405;
constexpr int kTooLarge = 431;
// When this process has no descriptor left, its next try.
constexpr std::chrono::milliseconds kPause{1'000};

const char* Reason(int status) {
  switch (status) {
    case kOk:
      return "OK";
    case kNotFound:
      return "Not Found";
    case kNotAllowed:
      return "Method Not Allowed\r\nAllow: GET";
    case kTooLarge:
      return "Request Header Fields Too Large";
    default:
      return "Bad Request";
  }
}

struct Place {
  sockaddr_in6 storage{};  // holds a sockaddr_in too
  socklen_t size = sizeof storage;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Result<Place> Parse(const std::string& address, uint16_t port) {
  Place place;
  place.storage.sin6_family = AF_INET6;
  place.storage.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, address.c_str(), &place.storage.sin6_addr) == 1) return place;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &four.sin_addr) != 1)
    return Error{Errc::kInvalid, fmt::format("metrics_address: '{}' is no address", address)};
  place.size = sizeof four;
  std::memcpy(&place.storage, &four, sizeof four);
  return place;
}

}  // namespace

int StatusOfRequest(std::string_view request) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t target = line.find(' ') + 1;
  const size_t version = line.rfind(' ') + 1;
  if (target == 0 || target >= version || !line.substr(version).starts_with("HTTP/1.")) return kMalformed;
  if (line.substr(0, target - 1) != "GET") return kNotAllowed;
  const std::string_view path = line.substr(target, version - 1 - target);
  return path.substr(0, path.find('?')) == "/metrics" ? kOk : kNotFound;
}

Result<std::unique_ptr<MetricsPort>> MetricsPort::Start(Loop& loop, Options options,
                                                        std::function<std::string()> gather) {
  auto place = Parse(options.address, options.port);
  if (!place) return place.error();
  UniqueFd listener(::socket(place->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (listener.valid()) ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener.valid() || ::bind(listener.get(), place->get(), place->size) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), place->get(), &place->size) != 0) {
    return Error{Errc::kUnavailable, fmt::format("cannot listen on {} port {} (metrics_port): {}",
                                                 options.address, options.port, std::strerror(errno))};
  }
  const uint16_t port = ntohs(place->storage.sin6_port);  // in the same place for IPv4
  return std::unique_ptr<MetricsPort>(
      new MetricsPort(loop, std::move(options), std::move(gather), std::move(listener), port));
}

MetricsPort::MetricsPort(Loop& loop, Options options, std::function<std::string()> gather, UniqueFd listener,
                         uint16_t port)
    : asked_loop_(loop.mailbox()),
      options_(std::move(options)),
      gather_(std::move(gather)),
      port_(port),
      listener_(std::move(listener)) {
  Listen();
  thread_ = std::thread([this] { loop_.Run(); });
}

MetricsPort::~MetricsPort() {
  loop_.Stop();
  thread_.join();
}

void MetricsPort::Listen() {
  loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

void MetricsPort::Accept() {
  // Not more at once: those who are connected have their turn.
  for (size_t i = 0; i < kMostConnections; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      loop_.Unwatch(listener_.get());
      loop_.After(kPause, [this] { Listen(); });
      return;
    }
    if (connections_.size() >= kMostConnections) {
      const auto idle = std::ranges::find_if(connections_, [](const auto& entry) {
        return entry.second.step == Step::kReads || entry.second.step == Step::kLeaves;
      });
      Close(idle == connections_.end() ? connections_.begin()->first : idle->first);
    }
    const Id id = next_++;
    Connection& connection = connections_[id];
    connection.fd = std::move(fd);
    connection.deadline = loop_.After(options_.patience, [this, id] { Close(id); });
    loop_.Watch(connection.fd.get(), EPOLLIN, [this, id](uint32_t) { Ready(id); });
  }
}

// What has happened is what the next call says: an event may be of the one who had this descriptor before.
void MetricsPort::Ready(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  switch (connection.step) {
    case Step::kReads:
      return Read(id, connection);
    case Step::kWaits:
      return Close(id);  // nothing is watched but its end
    case Step::kWrites:
      return Write(id, connection);
    case Step::kLeaves:
      return Leave(id, connection);
  }
}

void MetricsPort::Read(Id id, Connection& connection) {
  std::array<char, kMostRequest> part{};
  const ssize_t size = ::recv(connection.fd.get(), part.data(), part.size(), 0);
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) return Close(id);
  connection.request.append(part.data(), static_cast<size_t>(size));
  const size_t end = connection.request.find("\r\n\r\n");
  if (end == std::string::npos) {
    if (connection.request.size() >= kMostRequest) Answer(id, connection, kTooLarge, "");
    return;
  }
  const int status = StatusOfRequest(std::string_view(connection.request).substr(0, end + 2));
  if (status != kOk) return Answer(id, connection, status, "");
  if (text_at_ != Loop::Time() && loop_.Now() - text_at_ < options_.fresh)
    return Answer(id, connection, kOk, text_);
  connection.step = Step::kWaits;
  loop_.Watch(connection.fd.get(), 0, [this, id](uint32_t) { Ready(id); });
  Ask();
}

void MetricsPort::Ask() {
  if (std::exchange(asked_, true)) return;
  asked_loop_->Post([this, alive = std::weak_ptr<int>(alive_)] {
    if (alive.expired()) return;
    loop_.Post([this, text = gather_()] { Gathered(text); });
  });
}

void MetricsPort::Gathered(std::string text) {
  asked_ = false;
  text_ = std::move(text);
  text_at_ = loop_.Now();
  std::vector<Id> waiting;
  for (const auto& [id, connection] : connections_) {
    if (connection.step == Step::kWaits) waiting.push_back(id);
  }
  for (const Id id : waiting) Answer(id, connections_.at(id), kOk, text_);
}

void MetricsPort::Answer(Id id, Connection& connection, int status, std::string_view body) {
  connection.answer = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status, Reason(status), body.size(), body);
  connection.step = Step::kWrites;
  Write(id, connection);
}

void MetricsPort::Write(Id id, Connection& connection) {
  const std::string_view left = std::string_view(connection.answer).substr(connection.sent);
  const ssize_t size = ::send(connection.fd.get(), left.data(), left.size(), MSG_NOSIGNAL);
  if (size < 0 && errno != EAGAIN) return Close(id);
  if (size > 0) connection.sent += static_cast<size_t>(size);
  const auto ready = [this, id](uint32_t) { Ready(id); };
  if (connection.sent < connection.answer.size()) return loop_.Watch(connection.fd.get(), EPOLLOUT, ready);
  // Were it closed now, what the peer has sent beyond its request would take the answer away from it.
  connection.step = Step::kLeaves;
  ::shutdown(connection.fd.get(), SHUT_WR);
  loop_.Watch(connection.fd.get(), EPOLLIN, ready);
}

void MetricsPort::Leave(Id id, Connection& connection) {
  std::array<char, kMostRequest> unread{};
  const ssize_t size = ::recv(connection.fd.get(), unread.data(), unread.size(), 0);
  if (size == 0 || (size < 0 && errno != EAGAIN)) Close(id);
}

void MetricsPort::Close(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  loop_.Cancel(found->second.deadline);
  loop_.Unwatch(found->second.fd.get());
  connections_.erase(found);
}

}  // namespace muster
