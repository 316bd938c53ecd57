// Schedules that have found a bug once, each with what it has found. Add the seed that ./test.sh has printed. A change to the
// simulation makes another schedule of a seed; it stays as good as any.
#pragma once

#include <array>
#include <cstdint>

namespace muster::sim {

inline constexpr std::array<uint64_t, 1> kPinned = {
    1,  // the first
};

}  // namespace muster::sim
