// The muster command's connections, which come in on the agent's socket: daemon/service answers them.
#pragma once

#include <string_view>

#include "daemon/agent/local_socket.h"
#include "wire/wire.h"

namespace muster {

// On the loop's thread only.
class CommandConnections {
 public:
  // The first packet of a connection; false: it was refused.
  virtual bool Hello(LocalConnection& connection, std::string_view packet) = 0;
  // Each further one.
  virtual void Handle(LocalConnection& connection, const wire::Header& header, Packet& packet) = 0;
  virtual void Closed(LocalConnection& connection) = 0;

 protected:
  ~CommandConnections() = default;
};

}  // namespace muster
