// The exchange of a group that has no other: through the rendezvous at rank 0.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "net/rendezvous/client.h"

namespace muster {

// As Exchange says. Rank 0 sees who has not come, and tells the others: all give the same reason. Leaves the store with
// another deadline.
[[nodiscard]] Result<std::vector<std::string>> ExchangeThrough(rendezvous::Client& store,
                                                               const GroupOptions& options,
                                                               const std::string& key,
                                                               const std::string& value,
                                                               rendezvous::Deadline deadline);

}  // namespace muster
