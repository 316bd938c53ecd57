// A gang's beat key, and how the coordinator hands it to an agent over their link.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace muster {

// 32 bytes from the kernel's generator.
std::string MakeBeatKey();

// Encrypts and authenticates a beat key with a link's session key: nonce (16), key xor HMAC(session, "beat key" ‖ nonce),
// check (16). The context (gang and term, say) is bound to it: it must be the same when unwrapping.
std::string WrapKey(std::string_view session_key, std::string_view beat_key, std::string_view context);
// kCorrupt when it was not made with this session key and context.
Result<std::string> UnwrapKey(std::string_view session_key, std::string_view wrapped,
                              std::string_view context);

}  // namespace muster
