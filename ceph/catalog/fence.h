// Who may write: the pair (term, generation), ordered. A coordinator that takes over raises the term, a
// restart of the gang raises the generation.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

struct Fence {
  uint64_t term = 0;
  uint64_t generation = 0;
  auto operator<=>(const Fence&) const = default;

  // "0000000000000001.0000000000000002" (hexadecimal): as the store compares it.
  [[nodiscard]] std::string Encode() const;
  static std::optional<Fence> Decode(std::string_view text);
};

}  // namespace muster
