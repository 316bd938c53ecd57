#pragma once

#include <memory>

#include "daemon/slurm/helper/calls.h"

namespace muster::slurm {

// libslurm, initialized. It ends the process, with a message on stderr, when there is no good slurm.conf. One a
// process, for one thread.
std::unique_ptr<Calls> OpenLibslurm();

}  // namespace muster::slurm
