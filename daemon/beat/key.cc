#include "daemon/beat/key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "daemon/auth/auth_session.h"

namespace muster {
namespace {

constexpr size_t kNonceBytes = 16;
constexpr size_t kKeyBytes = 32;
constexpr size_t kCheckBytes = 16;

std::string Hmac(std::string_view key, const std::string& message) {
  std::array<unsigned char, 32> mac{};
  unsigned int size = mac.size();
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(message.data()), message.size(), mac.data(), &size);
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

std::string Xor(std::string_view a, std::string_view b) {
  std::string out(a);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(out[i] ^ b[i]);
  return out;
}

std::string Pad(std::string_view session_key, std::string_view nonce) {
  return Hmac(session_key, "muster beat key" + std::string(nonce));
}

std::string Check(std::string_view session_key, std::string_view nonce, std::string_view hidden,
                  std::string_view context) {
  std::string message = "muster beat key check";
  message.append(nonce).append(hidden).append(context);
  return Hmac(session_key, message).substr(0, kCheckBytes);
}

}  // namespace

std::string MakeBeatKey() {
  return RandomBytes(kKeyBytes);
}

std::string WrapKey(std::string_view session_key, std::string_view beat_key, std::string_view context) {
  const std::string nonce = RandomBytes(kNonceBytes);
  const std::string hidden = Xor(beat_key.substr(0, kKeyBytes), Pad(session_key, nonce));
  return nonce + hidden + Check(session_key, nonce, hidden, context);
}

Result<std::string> UnwrapKey(std::string_view session_key, std::string_view wrapped,
                              std::string_view context) {
  const Error bad{Errc::kCorrupt, "the gang's beat key was not wrapped for this connection and gang"};
  if (wrapped.size() != kNonceBytes + kKeyBytes + kCheckBytes) return bad;
  const std::string_view nonce = wrapped.substr(0, kNonceBytes);
  const std::string_view hidden = wrapped.substr(kNonceBytes, kKeyBytes);
  const std::string check = Check(session_key, nonce, hidden, context);
  if (!SameMac(check, wrapped.substr(kNonceBytes + kKeyBytes))) return bad;
  return Xor(hidden, Pad(session_key, nonce));
}

}  // namespace muster
