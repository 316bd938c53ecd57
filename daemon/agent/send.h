// Building packets of the local protocol for a connection.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "daemon/agent/local_socket.h"
#include "wire/wire.h"

namespace muster {

// Sends `body` (its header is filled here), then `tail`, with a copy of `fd` when it is not -1. What does not
// fit a packet is cut off the tail; `Body` must say the tail's size itself, with Fit.
template <typename Body>
bool SendBody(LocalConnection& connection, wire::Type type, Body body, std::string_view tail = {},
              int fd = -1) {
  wire::SetHeader(&body, type, tail.size());
  std::vector<char> packet(sizeof body + tail.size());
  std::memcpy(packet.data(), &body, sizeof body);
  if (!tail.empty()) std::memcpy(packet.data() + sizeof body, tail.data(), tail.size());
  return connection.Send(packet.data(), packet.size(), fd);
}

// The beginning of `text` that fits a packet behind any body.
inline std::string_view Fit(std::string_view text) {
  return text.substr(0, wire::kMaxMessage - 1024);
}

// Says why, then closes.
inline void Refuse(LocalConnection& connection, wire::Refusal reason, std::string_view text) {
  text = Fit(text);
  wire::Refused body{};
  body.reason = static_cast<uint32_t>(reason);
  body.text_bytes = static_cast<uint32_t>(text.size());
  SendBody(connection, wire::Type::kRefused, body, text);
  connection.CloseWhenSent();
}

}  // namespace muster
