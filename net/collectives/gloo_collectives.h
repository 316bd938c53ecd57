// Collectives over Gloo: host memory, TCP.
#pragma once

#include <memory>
#include <string>

#include "net/collectives/collectives.h"
#include "net/rendezvous/socket.h"

namespace muster {

// As MakeCollectives. Sums run on Gloo's ring or, where the count of members is a power of two, on its
// recursive halving and doubling; the choice depends on the count alone.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options);

// The same for more than one member, of which nothing but `exchange` tells the others. When one fails the others learn no
// more than that it has closed. `address`: from which this member reaches the others, in numbers.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeGlooCollectives(const GroupOptions& options,
                                                                       const Exchange& exchange,
                                                                       const std::string& address,
                                                                       rendezvous::Deadline deadline);

}  // namespace muster
