// MUNGE credentials: who the other side is, by the trust that Slurm's nodes already share.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace muster {

struct Credential {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string payload;
};

// Thread-safe; each call talks to the local munged and may block for it.
// With restrict_uid only that uid (or root) can read the payload.
Result<std::string> MungeEncode(const std::string& payload, uid_t restrict_uid);
Result<std::string> MungeEncode(const std::string& payload);
// kDenied when it is not valid: replayed, expired, or made elsewhere; the message says which, and names clock
// skew.
Result<Credential> MungeDecode(const std::string& credential);

}  // namespace muster
