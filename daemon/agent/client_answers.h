// Answers to libmuster: outcomes as it knows them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "ceph/store/store.h"
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

// kInternal: this node's store is not the coordinator's, by its id ("": not known), so no other node can read what is written here.
inline Status SameStore(const Store& own, const std::string& coordinators) {
  const std::string id = own.Id();
  if (id.empty() || coordinators.empty() || id == coordinators) return {};
  return Error{Errc::kInternal,
               fmt::format("this node has another store ({}, {}) than the gang's coordinator ({}): all nodes "
                           "of a gang need the "
                           "same one (is `store` in muster.yaml the same, and is the directory mounted?)",
                           own.Describe(), id, coordinators)};
}

}  // namespace muster
