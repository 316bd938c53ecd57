// One packet of a SOCK_SEQPACKET socket with at most one descriptor.
#pragma once

#include <cstddef>
#include <span>

#include "base/unique_fd.h"

namespace muster {

enum class Moved { kDone, kLater, kEnd };

// Sends `bytes`, with a copy of `fd` when it is not -1, without waiting. kLater: there is no room; kEnd: the connection has ended.
Moved SendPacket(int socket, std::span<const char> bytes, int fd);

// Receives what fits `into`; `size` is what of it was filled. Without `fd` no descriptor is taken: what was passed is dropped
// before this process has it. With it, the first one is. kEnd: an empty packet, or the connection has ended.
Moved ReceivePacket(int socket, std::span<char> into, size_t* size, UniqueFd* fd);

}  // namespace muster
