// One packet from musterd, checked and taken apart. musterd is trusted, its bytes are not: whatever arrives,
// this reads within the packet only.
#pragma once

#include <stddef.h>

#include "wire/wire.h"

namespace muster::supervisor {

struct Message {
  wire::Type type{};
  // The body of the packet's type.
  wire::Welcome welcome{};
  wire::Start start{};
  wire::TestLinks test_links{};
  wire::Stop stop{};
  wire::Finish finish{};
  wire::GetsOn gets_on{};
  wire::Beat beat{};
  // kReport, kRefused: inside the packet, not terminated.
  const char* text = nullptr;
  size_t text_size = 0;
};

enum class Parsed {
  kMessage,  // *out is filled in
  kUnknown,  // a well-formed packet of a type that is not for a supervisor of this version: to be ignored
  kBad,      // not a packet; *why says what is wrong with it
};

Parsed ParseMessage(const void* packet, size_t size, Message* out, const char** why);

// Whether `size` bytes are an environment as Start carries it: NUL-terminated strings, none of them empty or
// without a key.
bool IsEnvironment(const char* bytes, size_t size);

}  // namespace muster::supervisor
