// Answers to libmuster: outcomes as it knows them.
#pragma once

#include <string_view>

#include "daemon/agent/send.h"

namespace muster {

// Sends a body that has `status` and, for the tail, `text_bytes`.
template <typename Body>
void SendResult(LocalConnection& connection, wire::Type type, Body body, int status, std::string_view text,
                int fd = -1) {
  text = Fit(text);
  body.status = status;
  body.text_bytes = static_cast<uint32_t>(text.size());
  SendBody(connection, type, body, text, fd);
}

}  // namespace muster
