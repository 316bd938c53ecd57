// Answers to libmuster: outcomes as it knows them.
#pragma once

#include <string_view>

#include "ceph/muster.h"
#include "daemon/agent/send.h"
#include "daemon/base/result.h"

namespace muster {

// The muster_error of a failure.
inline int CodeOf(Errc code) {
  switch (code) {
    case Errc::kInvalid:
      return MUSTER_E_INVALID;
    case Errc::kNotFound:
      return MUSTER_E_NOT_FOUND;
    case Errc::kCorrupt:
      return MUSTER_E_CORRUPT;
    case Errc::kDenied:
      return MUSTER_E_DENIED;
    case Errc::kExhausted:
    case Errc::kUnavailable:
    case Errc::kConflict:
    case Errc::kInternal:
      return MUSTER_E_STORE;
  }
  return MUSTER_E_STORE;
}

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
