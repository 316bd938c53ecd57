// Collectives over Gloo: host memory, TCP.
#pragma once

#include <memory>

#include "net/collectives/collectives.h"
#include "net/rendezvous/client.h"

namespace muster {

// As MakeCollectives. Sums run on Gloo's ring or, where the count of members is a power of two, on its
// recursive halving and doubling; the choice depends on the count alone.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options);

// The same for more than one member, through a rendezvous that the caller keeps until this has returned on all
// members. When one fails the others learn no more than that it has closed.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options,
                                                                       rendezvous::Client& store,
                                                                       rendezvous::Deadline deadline);

}  // namespace muster
