// What muster-door tells the musterd that has started it, on its descriptor kDoorControl: packets of a DoorReport, and
// with kOpened a descriptor.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>

namespace muster {

inline constexpr int kDoorControl = 3;
// musterd says nothing on that descriptor. On a connection it says to the door, by a packet of one byte, which no message
// is, that what the peer passes from now on is wanted, if it is memory.
inline constexpr size_t kTakeMemoryBytes = 1;

enum class DoorSays : uint32_t {
  kListening,
  kFailed,  // `text` says why; the door ends
  kTaken,   // `text` likewise: another musterd listens there; the door ends
  kOpened,  // a connection, whose packets come and go by the descriptor
  kEnded,   // of a connection of `uid` nothing is left
};

struct DoorReport {
  DoorSays says = DoorSays::kListening;
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::array<char, 512> text{};  // ends with 0
};

}  // namespace muster
