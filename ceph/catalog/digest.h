// The digest of chunks and manifests.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "ceph/catalog/manifest.h"

namespace muster {

// XXH3-128 in its canonical form. It finds damage; it is no protection against an attacker who can write to
// the store.
Digest DigestOf(std::span<const std::byte> data);
Digest DigestOf(std::string_view text);
// 32 lower-case hexadecimal digits.
std::optional<Digest> DigestFromHex(std::string_view text);

}  // namespace muster
