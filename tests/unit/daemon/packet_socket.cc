#include "tests/unit/daemon/packet_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire/wire.h"

namespace muster {
namespace {

constexpr int kDeadlineMs = 20'000;

}  // namespace

PacketSocket::PacketSocket(const std::string& socket)
    : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.c_str(), socket.size() + 1);
  EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

void PacketSocket::Send(const std::string& packet, int descriptor) {
  iovec io{const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
  }
  EXPECT_EQ(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(packet.size()));
}

std::string PacketSocket::Receive() {
  std::string packet(wire::kMaxMessage, '\0');
  pollfd wait{socket_.get(), POLLIN, 0};
  if (::poll(&wait, 1, kDeadlineMs) != 1) return "";
  iovec io{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  packet.resize(size > 0 ? static_cast<size_t>(size) : 0);
  if (const cmsghdr* c = CMSG_FIRSTHDR(&message); size > 0 && c != nullptr) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(c), sizeof received);
    fd.reset(received);
  }
  wire::Header header{};
  if (packet.empty()) return "";
  EXPECT_EQ(wire::CheckHeader(packet.data(), packet.size(), &header), wire::Check::kOk);
  EXPECT_EQ(header.version, wire::kOldestVersion);
  return packet;
}

void PacketSocket::PassReports() {
  constexpr auto kReport = static_cast<uint16_t>(wire::Type::kReport);
  while (Peek() == kReport) reports += Receive().substr(sizeof(wire::Report));
}

uint16_t PacketSocket::Peek() {
  pollfd wait{socket_.get(), POLLIN, 0};
  wire::Header header{};
  if (::poll(&wait, 1, kDeadlineMs) != 1 ||
      ::recv(socket_.get(), &header, sizeof header, MSG_PEEK) != static_cast<ssize_t>(sizeof header)) {
    return 0;
  }
  return header.type;
}

bool PacketSocket::Ended() {
  pollfd wait{socket_.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&wait, 1, kDeadlineMs) == 1 && ::recv(socket_.get(), &byte, 1, 0) == 0;
}

std::string ReadAll(int fd, uint64_t bytes) {
  std::string text(bytes, '\0');
  EXPECT_EQ(::pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(bytes));
  return text;
}

UniqueFd SealedMemory(const std::string& content) {
  UniqueFd memory(::memfd_create("shard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(memory.get(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return memory;
}

}  // namespace muster
