// The muster command's side of a question to a daemon.
#pragma once

#include <string>

#include "base/result.h"

namespace muster {

// Sends a serialized Question to the daemon of `node` at `address` ("host:port") with a MUNGE credential of
// the calling user; gives the serialized Answer. Blocks up to timeout_seconds.
Result<std::string> AskDaemon(const std::string& node, const std::string& address,
                              const std::string& question, int timeout_seconds);

// What the credential of a question says: purpose, receiver, and the question's SHA-256, so that it serves
// for nothing else. MUNGE itself refuses to decode it twice on one host.
std::string QuestionCredentialPayload(const std::string& receiver, const std::string& question);

}  // namespace muster
