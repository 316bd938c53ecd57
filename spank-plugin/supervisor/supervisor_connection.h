// The socket to musterd: connecting, also from inside a container's mount namespace, and whole packets in and
// out.
#pragma once

#include <stddef.h>
#include <sys/uio.h>

#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster::supervisor {

// Who this member is: the constant part of the hello. The pointers stay the caller's.
struct Identity {
  wire::SupervisorHello hello{};  // the lengths of the tail are filled in by SendHello
  const char* node_list = "";
  const char* node_name = "";
  const char* options = "";
  const char* components = "";
};

// Where the member is, for a hello.
struct Whereabouts {
  wire::MemberState state = wire::MemberState::kWaiting;
  uint64_t generation = 0;
  int32_t child_pid = 0;
  int32_t wait_status = 0;
  wire::Known known = wire::Known::kNew;
  uint8_t token[wire::kTokenBytes] = {};
};

// Connects without waiting. `path` is looked up from `root_fd` (O_PATH; -1: this process's root), for the
// mount namespace may have changed since; the working directory is the same afterwards. Not valid: errno says
// why.
UniqueFd Connect(int root_fd, const char* path);

enum class Sent { kWhole, kLater, kBroken };  // kLater: the socket is full, poll for POLLOUT

Sent SendPacket(int fd, const iovec* parts, int count);
Sent SendHello(int fd, const Identity& identity, const Whereabouts& whereabouts);

// A body without a tail.
template <typename Body>
Sent SendBody(int fd, Body body, wire::Type type) {
  wire::SetHeader(&body, type);
  const iovec part = {&body, sizeof(body)};
  return SendPacket(fd, &part, 1);
}

struct Received {
  enum class What { kPacket, kNothing, kClosed } what = What::kNothing;
  size_t size = 0;  // may be above the buffer's size for a packet that was too long
  UniqueFd fd;      // the descriptor that came with it
};

// Takes the next packet off a socket without waiting. `size` bytes at `buffer` are there for it.
Received Receive(int fd, void* buffer, size_t size);

}  // namespace muster::supervisor
