// How many nodes a job has.
#pragma once

#include <stdint.h>

namespace muster::plugin {

// In srun: those that slurmctld has not taken from the job, a component's where the job is heterogeneous. After the loss of a node the
// job's environment still has the number of before, which counts when slurmctld does not answer; 0 when nobody has a number.
uint32_t NodesLeft(uint32_t job_id);

// What is left to a job that has lost nodes and goes on (--no-kill, which --gang brings with it).
struct Left {
  uint32_t nodes = 0;  // 0: the job has lost none, or nobody knows
  uint32_t nodes_before = 0;
  uint32_t tasks = 0;  // SLURM_NTASKS was lowered to this number; 0: it was not
  uint32_t tasks_before = 0;
  const char* list = "";  // of the nodes, as Slurm writes it
};

// In srun within such a job, before srun reads the environment: what the script's environment says of nodes and tasks becomes that of
// the nodes that are left, since Slurm refuses a step with as many tasks as the job had at first. A heterogeneous job is left alone.
void ForgetLostNodes();
const Left& LeftToTheJob();  // as ForgetLostNodes has found it
// Whether the job has all of these nodes still; true when that is not known.
bool AllLeft(const char* list);

}  // namespace muster::plugin
