// Packets of the local protocol as the other side would send them.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "wire/wire.h"

namespace muster {

template <typename Body>
std::string BuildPacket(Body body, wire::Type type, std::string_view tail = {}) {
  wire::SetHeader(&body, type, tail.size());
  std::string packet(sizeof body, '\0');
  std::memcpy(packet.data(), &body, sizeof body);
  packet += tail;
  return packet;
}

}  // namespace muster
