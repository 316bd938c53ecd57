#include "daemon/auth/auth_session.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "daemon/auth/munge.h"

namespace muster {
namespace {

constexpr std::string_view kPurpose = "muster-node-1";
constexpr size_t kKeyBytes = 32;

}  // namespace

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  size_t done = 0;
  while (done < count) {
    const ssize_t n = ::getrandom(bytes.data() + done, count - done, 0);
    if (n < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
    if (n > 0) done += static_cast<size_t>(n);
  }
  return bytes;
}

std::string HexEncode(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

Result<Opening> OpenSession(const std::string& receiver) {
  Opening opening;
  opening.key = RandomBytes(kKeyBytes);
  auto credential = MungeEncode(fmt::format("{}\n{}\n{}", kPurpose, receiver, opening.key), ::geteuid());
  if (!credential) return credential.error();
  opening.credential = *credential;
  return opening;
}

Result<std::string> AcceptSession(const std::string& credential, const std::string& self,
                                  uint32_t service_uid) {
  auto decoded = MungeDecode(credential);
  if (!decoded) return decoded.error();
  if (decoded->uid != 0 && decoded->uid != service_uid) {
    return Error{Errc::kDenied, fmt::format("uid {} may not speak for a node", decoded->uid)};
  }
  const std::string expected = fmt::format("{}\n{}\n", kPurpose, self);
  if (!decoded->payload.starts_with(expected) || decoded->payload.size() != expected.size() + kKeyBytes) {
    return Error{Errc::kDenied,
                 fmt::format("the credential is not for {} (check node_name on both hosts)", self)};
  }
  return decoded->payload.substr(expected.size());
}

std::string Mac(const std::string& key, Direction direction, uint64_t sequence, std::string_view payload) {
  std::string message(9, '\0');
  message[0] = static_cast<char>(direction);
  for (size_t i = 0; i < 8; ++i) message[1 + i] = static_cast<char>(sequence >> (56 - 8 * i));
  message.append(payload);
  std::array<unsigned char, 32> mac{};
  unsigned int size = mac.size();
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(), mac.data(), &size);
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

bool SameMac(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace muster
