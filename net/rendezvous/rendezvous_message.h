// The rendezvous protocol, version 1: how the members of a round speak through rank 0.
//
// One message, request or reply, is a 16-byte header and then the key and the value, without padding.
// Integers are big-endian. Nothing may follow the value but the next message.
//
//   offset  size  field
//   0       4     magic, "MRDV"
//   4       1     version, 1
//   5       1     type: 1 set, 2 get, 6 will (requests); 3 stored, 4 value, 5 refused (replies)
//   6       2     key length, at most kMaxKeyBytes; replies have no key
//   8       4     value length, at most kMaxValueBytes; a get has no value
//   12      4     patience in milliseconds: how long a get waits for its key; 0 in all others
//
// A reply of type 5 carries the reason as text in its value. A connection carries one request at a time: a request that
// comes while a get waits ends that wait, and only the later one is answered. A will is a set that the store makes when
// the connection has ended, unless somebody has written the key by then. A connection has one: the last.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::rendezvous {

inline constexpr std::size_t kHeaderBytes = 16;
inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxValueBytes = 64 * 1024;

enum class MessageType : std::uint8_t {
  kSet = 1,
  kGet = 2,
  kStored = 3,
  kValue = 4,
  kRefused = 5,
  kWill = 6
};

struct Message {
  MessageType type = MessageType::kRefused;
  std::string key;
  std::string value;
  std::chrono::milliseconds patience{0};
};

// A message taken from the front of a buffer, and the bytes that it took there.
struct Decoded {
  Message message;
  std::size_t bytes = 0;
};

// kInvalid when the key, the value or the patience is beyond what the header can say.
[[nodiscard]] Result<std::vector<std::byte>> Encode(const Message& message);

// The first message in `buffer`; nothing when it is not complete yet. kInvalid when it can never become a
// valid one; that is decided from the header alone, so a receiver never buffers more than kHeaderBytes + the
// two limits.
[[nodiscard]] Result<std::optional<Decoded>> Decode(std::span<const std::byte> buffer);

}  // namespace muster::rendezvous
