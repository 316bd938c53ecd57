// muster-slurm's answers: which questions there are, and when a node may be touched.
#pragma once

#include <string>
#include <string_view>

#include "daemon/slurm/helper/calls.h"

namespace muster::slurm {

// Answers one line of the protocol (docs/formats.md), without the line ends. Never throws; what is malformed gets an
// "invalid" answer, with id 0 when it has none.
std::string Answer(Calls& calls, std::string_view line);

}  // namespace muster::slurm
