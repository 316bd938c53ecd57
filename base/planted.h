// A tool of the tests: bugs that can be planted, to see that an invariant of tests/sim finds each. The product has none of
// them: there a place that is called so is the constant `false`. tests/sim builds the same sources once more with
// MUSTER_PLANTED_BUGS, and then `planted` says which bug is there. Not thread-safe: it is set before anything runs.
#pragma once

#ifdef MUSTER_PLANTED_BUGS
#include <string_view>

namespace muster {
inline std::string_view planted;  // "": none
}  // namespace muster
#define MUSTER_PLANTED(name) (::muster::planted == #name)
#else
namespace muster {
inline constexpr bool kPlanted =
    false;  // a name, for clang-tidy takes a literal in a condition for a mistake
}  // namespace muster
#define MUSTER_PLANTED(name) (::muster::kPlanted)
#endif
