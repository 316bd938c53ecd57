// Collectives over Gloo: host memory, TCP.
#pragma once

#include <memory>

#include "net/collectives/collectives.h"

namespace muster {

// As MakeCollectives. Sums run on Gloo's ring or, where the count of members is a power of two, on its
// recursive halving and doubling; the choice depends on the count alone.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options);

}  // namespace muster
