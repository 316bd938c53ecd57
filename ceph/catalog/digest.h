// The digest of chunks and manifests.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "ceph/catalog/manifest.h"

struct XXH3_state_s;

namespace muster {

// XXH3-128 in its canonical form. It finds damage; it is no protection against an attacker who can write to
// the store.
Digest DigestOf(std::span<const std::byte> data);
Digest DigestOf(std::string_view text);
// The same for data that comes in pieces.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;
  void Add(std::span<const std::byte> data);
  [[nodiscard]] Digest Get() const;

 private:
  XXH3_state_s* state_;
};

// 32 lower-case hexadecimal digits.
std::optional<Digest> DigestFromHex(std::string_view text);

}  // namespace muster
