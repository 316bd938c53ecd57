#include "daemon/partner/stream.h"

#include <fmt/format.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/beat/address.h"
#include "daemon/proto/muster.pb.h"

namespace muster {
namespace {

constexpr auto kConnect = std::chrono::milliseconds(1'000);
constexpr auto kProve = std::chrono::milliseconds(3'000);
constexpr auto kMessage = std::chrono::milliseconds(10'000);
constexpr size_t kMaxOpening = 72 << 10;  // a credential and little else
constexpr size_t kMaxMessage = 17 << 20;  // the digests of a 4 TiB shard

Error Failed(const char* what, int error) {
  return {Errc::kUnavailable, fmt::format("cannot {} a partner node: {}", what, std::strerror(error))};
}

void SetLowPriority(int socket) {
  const int tos = IPTOS_CLASS_CS1;
  ::setsockopt(socket, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
  ::setsockopt(socket, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
}

void SetOptions(int socket, Urgency urgency) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (urgency == Urgency::kBackground) SetLowPriority(socket);
}

bool KnownErrc(uint32_t code) {
  return code <= static_cast<uint32_t>(Errc::kInternal);
}

}  // namespace

void PartnerStream::StepBack() {
  SetLowPriority(socket_.get());
}

v1::PartnerMessage PartnerRefusal(const Error& error) {
  v1::PartnerMessage message;
  message.mutable_refused()->set_code(static_cast<uint32_t>(error.code));
  message.mutable_refused()->set_text(error.message);
  return message;
}

Result<std::unique_ptr<PartnerStream>> PartnerStream::Connect(const std::string& node, uint16_t port,
                                                              Urgency urgency,
                                                              std::shared_ptr<const Cancel> cancel) {
  const auto address = ResolveBeatAddress(node, port);
  if (!address) return address.error();
  UniqueFd socket(
      ::socket(address->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket.valid()) return Failed("make a socket for", errno);
  SetOptions(socket.get(), urgency);
  std::unique_ptr<PartnerStream> stream(new PartnerStream(std::move(socket), std::move(cancel),
                                                          Direction::kToPartner, Direction::kFromPartner));
  stream->SetDeadline(kConnect);
  const int fd = stream->socket_.get();
  if (::connect(fd, address->get(), address->size) != 0 && errno != EINPROGRESS)
    return Failed("reach", errno);
  if (Status ready = stream->Wait(POLLOUT); !ready) return ready.error();
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return Failed("reach", error);
  auto opening = OpenSession(node);
  if (!opening) return opening.error();
  stream->key_ = std::move(opening->key);
  stream->SetDeadline(kProve);
  if (Status sent = stream->SendEnvelope("", opening->credential); !sent) return sent.error();
  return stream;
}

Result<std::unique_ptr<PartnerStream>> PartnerStream::Accept(UniqueFd socket, const std::string& self,
                                                             uint32_t service_uid,
                                                             std::shared_ptr<const Cancel> cancel) {
  SetOptions(socket.get(), Urgency::kNow);
  std::unique_ptr<PartnerStream> stream(new PartnerStream(std::move(socket), std::move(cancel),
                                                          Direction::kFromPartner, Direction::kToPartner));
  stream->SetDeadline(kProve);
  const auto opening = stream->ReceiveEnvelope(kMaxOpening, &self, service_uid);
  if (!opening) return opening.error();
  return stream;
}

Status PartnerStream::Send(const v1::PartnerMessage& message) {
  SetDeadline(kMessage);
  return SendEnvelope(message.SerializeAsString(), "");
}

Status PartnerStream::SendEnvelope(std::string payload, const std::string& credential) {
  v1::Envelope envelope;
  envelope.set_sequence(next_out_);
  envelope.set_mac(Mac(key_, out_, next_out_, payload));
  envelope.set_payload(std::move(payload));
  envelope.set_credential(credential);
  ++next_out_;
  std::string frame(4, '\0');
  envelope.AppendToString(&frame);
  const size_t bytes = frame.size() - 4;
  if (bytes > kMaxMessage) return Error{Errc::kInvalid, "a message about a shard is too long"};
  for (size_t i = 0; i < 4; ++i) frame[i] = static_cast<char>(bytes >> (8 * i));
  return SendBytes(std::as_bytes(std::span(frame)));
}

Result<v1::PartnerMessage> PartnerStream::Receive(std::chrono::milliseconds within) {
  SetDeadline(within);
  const auto payload = ReceiveEnvelope(kMaxMessage, nullptr, 0);
  if (!payload) return payload.error();
  v1::PartnerMessage message;
  if (!message.ParseFromString(*payload))
    return Error{Errc::kInvalid, "a partner node has sent a message that cannot be read"};
  if (message.has_refused()) {
    const uint32_t code = message.refused().code();
    return Error{KnownErrc(code) ? static_cast<Errc>(code) : Errc::kInternal, message.refused().text()};
  }
  return message;
}

// With `self`: the first one, whose credential gives the key.
Result<std::string> PartnerStream::ReceiveEnvelope(size_t most, const std::string* self,
                                                   uint32_t service_uid) {
  std::array<std::byte, 4> header{};
  if (Status got = ReceiveBytes(header); !got) return got.error();
  size_t bytes = 0;
  for (size_t i = 0; i < 4; ++i) bytes |= std::to_integer<size_t>(header[i]) << (8 * i);
  if (bytes > most) return Error{Errc::kInvalid, fmt::format("a message of {} bytes is too long", bytes)};
  // Memory as it comes: a length is no proof.
  std::string frame;
  while (frame.size() < bytes) {
    const size_t at = frame.size();
    frame.resize(std::min(bytes, at + (64 << 10)));
    const auto piece = std::as_writable_bytes(std::span(frame)).subspan(at);
    if (Status got = ReceiveBytes(piece); !got) return got.error();
  }
  v1::Envelope envelope;
  if (!envelope.ParseFromString(frame)) return Error{Errc::kInvalid, "a message cannot be read"};
  if (self != nullptr) {
    auto key = AcceptSession(envelope.credential(), *self, service_uid);
    if (!key) return key.error();
    key_ = *std::move(key);
  }
  if (envelope.sequence() != next_in_ ||
      !SameMac(envelope.mac(), Mac(key_, in_, envelope.sequence(), envelope.payload()))) {
    return Error{Errc::kDenied, "a message did not authenticate"};
  }
  ++next_in_;
  return std::move(*envelope.mutable_payload());
}

Status PartnerStream::Wait(short events) {
  while (true) {
    if (cancel_->now()) return Error{Errc::kUnavailable, "it is not wanted any more"};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    if (left <= 0) return Error{Errc::kUnavailable, "a partner node does not answer in time"};
    std::array<pollfd, 2> fds{{{socket_.get(), events, 0}, {cancel_->fd(), POLLIN, 0}}};
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return Failed("wait for", errno);
    if (ready > 0 && fds[0].revents != 0) return {};
  }
}

Status PartnerStream::SendBytes(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL);
    if (n > 0) data = data.subspan(static_cast<size_t>(n));
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed("send to", errno);
    if (Status ready = Wait(POLLOUT); !ready) return ready;
  }
  return {};
}

Status PartnerStream::SendFile(int file, uint64_t at, uint64_t bytes) {
  auto offset = static_cast<off_t>(at);
  while (bytes > 0) {
    const ssize_t n = ::sendfile(socket_.get(), file, &offset, bytes);
    if (n == 0) return Error{Errc::kInternal, "a copy in memory is cut off"};
    if (n > 0) bytes -= static_cast<uint64_t>(n);
    if (n > 0 || errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed("send to", errno);
    if (Status ready = Wait(POLLOUT); !ready) return ready;
  }
  return {};
}

Status PartnerStream::ReceiveBytes(std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::recv(socket_.get(), into.data(), into.size(), 0);
    if (n == 0) return Error{Errc::kUnavailable, "a partner node has closed the connection"};
    if (n > 0) into = into.subspan(static_cast<size_t>(n));
    if (n > 0 || errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed("hear", errno);
    if (Status ready = Wait(POLLIN); !ready) return ready;
  }
  return {};
}

}  // namespace muster
