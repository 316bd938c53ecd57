// How long the starts of a role's program have taken at most, of those that one coordinator has seen from their beginning.
#pragma once

#include <cstdint>

namespace muster::hang {

struct SeenStarts {
  int64_t first_step_ns = 0;  // from a generation's start to its first step; 0: no start has come so far
  int64_t tenth_step_ns = 0;
};

}  // namespace muster::hang
