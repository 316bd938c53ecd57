// The rendezvous codec on any bytes: what it takes, it must be able to say again, byte for byte.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "net/rendezvous/rendezvous_message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using muster::rendezvous::Decode;
  using muster::rendezvous::Encode;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto decoded = Decode(bytes);
  if (!decoded || !decoded->has_value()) return 0;
  const auto again = Encode((*decoded)->message);
  if (!again || !std::ranges::equal(*again, bytes.first((*decoded)->bytes))) std::abort();
  return 0;
}
