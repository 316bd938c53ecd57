#include "daemon/cli/musterd_session.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "wire/status_codes.h"

namespace muster::cli {

Result<MusterdSession> MusterdSession::Open(const std::string& socket, std::optional<uint32_t> uid) {
  const auto failed = [&](int error) {
    return Error{Errc::kUnavailable,
                 fmt::format("musterd of this host at {}: {} (is musterd.service running?)", socket,
                             std::strerror(error))};
  };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) return failed(ENAMETOOLONG);
  std::memcpy(address.sun_path, socket.c_str(), socket.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return failed(errno);
  MusterdSession session(std::move(fd));
  wire::CommandHello hello{};
  hello.uid = uid.value_or(wire::kOwnUid);
  const auto answer = session.Ask(wire::Type::kCommandHello, hello);
  if (!answer) return answer.error();
  session.max_shard_bytes_ = answer->body.bytes;
  return session;
}

template <typename Body>
Result<MusterdSession::Answer> MusterdSession::Ask(wire::Type type, Body body, std::string_view tail,
                                                   int fd) {
  wire::SetHeader(&body, type, tail.size());
  std::array<iovec, 2> io{iovec{&body, sizeof body}, iovec{const_cast<char*>(tail.data()), tail.size()}};
  msghdr message{};
  message.msg_iov = io.data();
  message.msg_iovlen = io.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // One that has refused an earlier message has said why before it closed.
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) {
    return Error{Errc::kUnavailable, fmt::format("cannot ask musterd: {}", std::strerror(errno))};
  }
  return Receive();
}

Result<MusterdSession::Answer> MusterdSession::Receive() {
  std::vector<char> packet(wire::kMaxMessage);
  iovec io{packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = -1;
  do {
    size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return Error{Errc::kUnavailable, "musterd has closed the connection: was it stopped?"};
  Answer answer;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    answer.fd.reset(fd);
  }
  const auto bytes = static_cast<size_t>(size);
  const char* text[1] = {};
  wire::Header header{};
  wire::Refused refused{};
  const bool good = wire::CheckHeader(packet.data(), bytes, &header) == wire::Check::kOk;
  if (good && header.type == static_cast<uint16_t>(wire::Type::kRefused) &&
      wire::ReadBody(packet.data(), bytes, &refused) &&
      wire::ReadTail<wire::Refused, 1>(packet.data(), bytes, {refused.text_bytes}, text)) {
    return Error{
        refused.reason == static_cast<uint32_t>(wire::Refusal::kDenied) ? Errc::kDenied : Errc::kUnavailable,
        std::string(text[0], refused.text_bytes)};
  }
  if (!good || header.type != static_cast<uint16_t>(wire::Type::kCommandAnswer) ||
      !wire::ReadBody(packet.data(), bytes, &answer.body) ||
      !wire::ReadTail<wire::CommandAnswer, 1>(packet.data(), bytes, {answer.body.text_bytes}, text)) {
    return Error{Errc::kUnavailable, "musterd has answered with what this command does not understand"};
  }
  if (answer.body.status != wire::kStatusOk)
    return Error{wire::ErrcOf(answer.body.status), std::string(text[0], answer.body.text_bytes)};
  return answer;
}

Result<MusterdSession::Checkpoint> MusterdSession::OpenCheckpoint(const std::string& key, uint64_t step) {
  wire::CommandOpen question{};
  question.step = step;
  question.key_bytes = static_cast<uint32_t>(key.size());
  const auto answer = Ask(wire::Type::kCommandOpen, question, key);
  if (!answer) return answer.error();
  return Checkpoint{answer->body.step, answer->body.bytes, answer->body.world_size};
}

Result<MusterdSession::Part> MusterdSession::Read(uint32_t rank, uint64_t offset, uint64_t bytes) {
  wire::CommandShard question{};
  question.offset = offset;
  question.bytes = bytes;
  question.rank = rank;
  auto answer = Ask(wire::Type::kCommandRead, question);
  if (!answer) return answer.error();
  if (!answer->fd.valid()) return Error{Errc::kUnavailable, "musterd has sent a shard without its memory"};
  return Part{std::move(answer->fd), answer->body.bytes};
}

Result<uint64_t> MusterdSession::Verify(uint32_t rank) {
  wire::CommandShard question{};
  question.rank = rank;
  const auto answer = Ask(wire::Type::kCommandVerify, question);
  if (!answer) return answer.error();
  return answer->body.bytes;
}

Status MusterdSession::Begin(const std::string& key, uint64_t step, uint32_t world_size) {
  wire::CommandBegin question{};
  question.step = step;
  question.world_size = world_size;
  question.key_bytes = static_cast<uint32_t>(key.size());
  const auto answer = Ask(wire::Type::kCommandBegin, question, key);
  return answer ? Status() : Status(answer.error());
}

Status MusterdSession::Write(uint32_t rank, const UniqueFd& memory, uint64_t bytes) {
  wire::CommandShard question{};
  question.bytes = bytes;
  question.rank = rank;
  const auto answer = Ask(wire::Type::kCommandWrite, question, {}, memory.get());
  return answer ? Status() : Status(answer.error());
}

Status MusterdSession::Commit() {
  const auto answer = Ask(wire::Type::kCommandCommit, wire::CommandCommit{});
  return answer ? Status() : Status(answer.error());
}

}  // namespace muster::cli
