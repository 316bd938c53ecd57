// How many nodes a job has.
#pragma once

#include <stdint.h>

namespace muster::plugin {

// In srun: those that slurmctld has not taken from the job, a component's where the job is heterogeneous. After the loss of a node the
// job's environment still has the number of before, which counts when slurmctld does not answer; 0 when nobody has a number.
uint32_t NodesLeft(uint32_t job_id);

}  // namespace muster::plugin
