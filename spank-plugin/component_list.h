// A heterogeneous step's components, from srun, which alone sees all of them, to their tasks. Slurm hands the last
// component's --gang to every one of them, and says to none which it is: srun leaves the list in the environment, and the
// remote side finds its own place by its job.
#pragma once

#include <stddef.h>

#include "spank-plugin/spank_header.h"

namespace muster::plugin {

// Slurm takes variables of this kind along even under --export=NONE.
inline constexpr char kComponentsVariable[] = "SLURM_MUSTER_COMPONENTS";

// In srun, for each component whose options have been read; `groups` as in --het-group. Null, or a sentence that says why
// it cannot be one of its gang.
const char* AddComponent(bool given, const char* value, const char* groups);

// In slurmstepd: the text of daemon/gang_job/components.h, terminated; "" for a step of one component. Null, or a sentence
// that says what is wrong.
const char* DescribeComponents(spank_t spank, char* text, size_t size);

}  // namespace muster::plugin
