// The key of one connection between daemons, and the code that every message on it carries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace muster {

// The first message of a connection proves who opens it: a MUNGE credential that only the service's user can
// read, with the receiver's name (so that it is of no use elsewhere) and a fresh key for the messages that
// follow.
struct Opening {
  std::string credential;
  std::string key;
};
Result<Opening> OpenSession(const std::string& receiver);

// Checks an opening: the sender is root or `service_uid`, and meant `self`. Gives the key.
Result<std::string> AcceptSession(const std::string& credential, const std::string& self,
                                  uint32_t service_uid);

enum class Direction : uint8_t { kToCoordinator = 1, kToAgent = 2, kToPartner = 3, kFromPartner = 4 };

// HMAC-SHA-256 over direction, sequence (big-endian) and payload; 32 bytes. Thread-safe.
std::string Mac(const std::string& key, Direction direction, uint64_t sequence, std::string_view payload);
// In constant time.
bool SameMac(std::string_view a, std::string_view b);

// `count` bytes from the kernel's generator.
std::string RandomBytes(size_t count);
std::string HexEncode(std::string_view bytes);

}  // namespace muster
