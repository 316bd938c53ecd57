// Authenticated links between daemons, over gRPC streams, and what serves them. The rest of the daemon sees no gRPC.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/link/link.h"

namespace muster {

// A DialLink.
std::shared_ptr<Link> OpenLink(const std::string& node, const std::string& address, LinkEvents events,
                               const RunElsewhere& elsewhere);

struct ServerOptions {
  std::string address;  // "host:port"
  std::string self;     // this node's name
  uint32_t service_uid = 0;
  // For how long the other end may leave what was sent without an answer of its kernel's. Until then a link to a host that is
  // dead stays, so it should be longer than whatever finds that out: a link that has ended means that its host lives.
  std::chrono::milliseconds dead{20'000};
};

// Serves links and questions. Thread-safe.
class Server {
 public:
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options, AcceptLink accept,
                                               AnswerQuestion answer);
  virtual ~Server() = default;
};

}  // namespace muster
