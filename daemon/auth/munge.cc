#include "daemon/auth/munge.h"

#include <fmt/format.h>
#include <munge.h>

#include <cstdlib>
#include <memory>

namespace muster {
namespace {

struct DestroyContext {
  void operator()(munge_ctx* context) const { munge_ctx_destroy(context); }
};
using Context = std::unique_ptr<munge_ctx, DestroyContext>;

std::string Reason(munge_err_t error, munge_ctx_t context) {
  const char* text = context != nullptr ? munge_ctx_strerror(context) : nullptr;
  std::string reason = text != nullptr ? text : munge_strerror(error);
  if (error == EMUNGE_CRED_EXPIRED || error == EMUNGE_CRED_REWOUND) {
    reason += " (do the clocks of the two hosts differ?)";
  } else if (error == EMUNGE_SOCKET) {
    reason += " (is munge.service running?)";
  }
  return reason;
}

Result<std::string> Encode(const std::string& payload, munge_ctx_t context) {
  char* text = nullptr;
  const munge_err_t error = munge_encode(&text, context, payload.data(), static_cast<int>(payload.size()));
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  if (error != EMUNGE_SUCCESS) {
    return Error{Errc::kUnavailable,
                 fmt::format("cannot make a MUNGE credential: {}", Reason(error, context))};
  }
  return std::string(text);
}

}  // namespace

Result<std::string> MungeEncode(const std::string& payload, uid_t restrict_uid) {
  const Context context(munge_ctx_create());
  if (!context) return Error{Errc::kInternal, "out of memory"};
  munge_ctx_set(context.get(), MUNGE_OPT_UID_RESTRICTION, restrict_uid);
  return Encode(payload, context.get());
}

Result<std::string> MungeEncode(const std::string& payload) {
  const Context context(munge_ctx_create());
  if (!context) return Error{Errc::kInternal, "out of memory"};
  return Encode(payload, context.get());
}

Result<Credential> MungeDecode(const std::string& credential) {
  const Context context(munge_ctx_create());
  if (!context) return Error{Errc::kInternal, "out of memory"};
  void* payload = nullptr;
  int size = 0;
  Credential result;
  const munge_err_t error =
      munge_decode(credential.c_str(), context.get(), &payload, &size, &result.uid, &result.gid);
  const std::unique_ptr<void, decltype(&std::free)> owned(payload, &std::free);
  if (error != EMUNGE_SUCCESS) {
    return Error{error == EMUNGE_SOCKET ? Errc::kUnavailable : Errc::kDenied,
                 fmt::format("MUNGE credential refused: {}", Reason(error, context.get()))};
  }
  if (payload != nullptr) result.payload.assign(static_cast<char*>(payload), static_cast<size_t>(size));
  return result;
}

}  // namespace muster
