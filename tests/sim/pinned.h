// Schedules that always run: the first one, and each that has found a bug that is mended, with what it was. A change to the
// simulation makes another schedule of a seed; it stays as good as any.
#pragma once

#include <array>
#include <cstdint>

namespace muster::sim {

inline constexpr std::array<uint64_t, 1> kPinned = {
    1,  // the first
};

}  // namespace muster::sim
