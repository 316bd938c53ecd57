// Collectives over NCCL, which is loaded at run time.
#pragma once

#include <memory>

#include "net/collectives/collectives.h"

namespace muster {

// As MakeCollectives. NCCL's sums depend on the algorithm and the order of the members, which NCCL chooses by what
// connects them. A member that fails aborts its communicator on a thread of its own. An abort that hangs is said so; then
// only the process's end will free the device.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeNcclCollectives(const GroupOptions& options);

}  // namespace muster
