// The number of a submission: of a job with all its requeues. Slurm gives a job's number again, when its state was lost or restored, or
// from 1 on behind MaxJobId, and another cluster gives the same ones.
#pragma once

#include <stdint.h>

#include "spank-plugin/spank_header.h"

namespace muster::plugin {

// In the job's environment, which Slurm keeps through requeues: 16 digits. Slurm takes variables of this kind along even under
// --export=NONE.
inline constexpr char kSubmissionVariable[] = "SLURM_MUSTER_SUBMISSION";

// In sbatch, salloc and srun, once the options are read: draws a number if this program submits a job, srun only with --gang. A job
// submits others as anybody does; its own steps keep its number.
void NumberSubmission();

// In slurmstepd: the job's; 0 where it was submitted without the plugin.
uint64_t SubmissionOf(spank_t spank);

}  // namespace muster::plugin
