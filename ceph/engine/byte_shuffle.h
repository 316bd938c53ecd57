// The bytes of numbers, put together by their place in the number: the exponents of floats next to each other compress,
// the lowest bytes do not, and neither does the mixture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster {

// Of n = from.size() / width elements, byte b of element i goes to place b * n + i; the rest follows as it is. `into` is as
// long as `from`, and elsewhere; `width` is 1, 2, 4 or 8.
void ShuffleBytes(std::span<const std::byte> from, uint32_t width, std::span<std::byte> into);
// The way back.
void UnshuffleBytes(std::span<const std::byte> from, uint32_t width, std::span<std::byte> into);

}  // namespace muster
