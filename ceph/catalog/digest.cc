#include "ceph/catalog/digest.h"

#include <cstring>
#include <new>

#include "ceph/catalog/xxh3.h"

namespace muster {
namespace {

constexpr char kNibbles[] = "0123456789abcdef";

int Nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

Digest Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  static_assert(sizeof(canonical.digest) == sizeof(digest));
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace

Digest DigestOf(std::span<const std::byte> data) {
  return Canonical(XXH3_128bits(data.data(), data.size()));
}

Digester::Digester() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_);
}

Digester::~Digester() {
  XXH3_freeState(state_);
}

void Digester::Add(std::span<const std::byte> data) {
  XXH3_128bits_update(state_, data.data(), data.size());
}

Digest Digester::Get() const {
  return Canonical(XXH3_128bits_digest(state_));
}

Digest DigestOf(std::string_view text) {
  return DigestOf(std::as_bytes(std::span(text)));
}

std::string ToHex(const Digest& digest) {
  std::string text;
  text.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    text += kNibbles[byte >> 4];
    text += kNibbles[byte & 15];
  }
  return text;
}

std::optional<Digest> DigestFromHex(std::string_view text) {
  Digest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = Nibble(text[2 * i]);
    const int low = Nibble(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return digest;
}

}  // namespace muster
