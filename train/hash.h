// Numbers that are a pure function of a few counters: what a step sees does not depend on the steps before
// it.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace muster::train {

// The finaliser of SplitMix64: spreads neighbouring inputs over all 64 bits.
[[nodiscard]] constexpr std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// A hash of several counters; their order matters.
[[nodiscard]] constexpr std::uint64_t Hash(std::initializer_list<std::uint64_t> counters) {
  std::uint64_t hash = 0;
  for (const std::uint64_t counter : counters) hash = Mix(hash ^ counter);
  return hash;
}

// [-1, 1), from the upper 24 bits, so that the float is exact.
[[nodiscard]] constexpr float SignedUnit(std::uint64_t hash) {
  return static_cast<float>(hash >> 40) * (1.0F / 8388608.0F) - 1.0F;
}

}  // namespace muster::train
