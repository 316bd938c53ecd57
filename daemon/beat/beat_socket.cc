#include "daemon/beat/beat_socket.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"
#include "daemon/beat/address.h"

namespace muster {
namespace {

// What a coordinator of 4,096 nodes may be sent in a second, so that a late thread loses nothing.
constexpr int kReceiveBuffer = 8 << 20;

class UdpSocket final : public BeatSocket {
 public:
  explicit UdpSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int fd() const override { return socket_.get(); }
  [[nodiscard]] uint16_t port() const override {
    BeatAddress bound;
    bound.size = sizeof bound.storage;
    if (::getsockname(socket_.get(), bound.get(), &bound.size) != 0) return 0;
    return ntohs(bound.storage.sin6_port);  // at the same place in both families
  }
  int Receive(std::span<mmsghdr> packets) override {
    return ::recvmmsg(socket_.get(), packets.data(), static_cast<unsigned>(packets.size()), MSG_DONTWAIT,
                      nullptr);
  }
  int Send(std::span<mmsghdr> packets) override {
    return ::sendmmsg(socket_.get(), packets.data(), static_cast<unsigned>(packets.size()), MSG_DONTWAIT);
  }

 private:
  UniqueFd socket_;
};

}  // namespace

Result<std::shared_ptr<BeatSocket>> BeatSocket::OpenUdp(const std::string& address, uint16_t port) {
  const bool six = address.find(':') != std::string::npos;
  auto resolved = ResolveBeatAddress(address, port, six ? AF_INET6 : AF_INET);
  if (!resolved) return resolved.error();
  UniqueFd socket(::socket(six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() || ::bind(socket.get(), resolved->get(), resolved->size) != 0) {
    return Error{Errc::kUnavailable, fmt::format("cannot listen for beats on {}, UDP port {}: {}", address,
                                                 port, std::strerror(errno))};
  }
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBuffer, sizeof kReceiveBuffer) != 0) {
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer);
  }
  return std::shared_ptr<BeatSocket>(std::make_shared<UdpSocket>(std::move(socket)));
}

}  // namespace muster
