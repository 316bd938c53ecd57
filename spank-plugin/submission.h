// The number of a submission: of one job with all its requeues. A job's number does not tell two jobs apart: Slurm counts from 1 again
// behind MaxJobId and when slurmctld's state was lost, and other clusters have jobs of the same numbers.
#pragma once

#include <stdint.h>

#include "spank-plugin/spank_header.h"

namespace muster::plugin {

// In the job's environment, which Slurm keeps through requeues: 16 digits. Slurm takes variables of this kind along even under
// --export=NONE.
inline constexpr char kSubmissionVariable[] = "SLURM_MUSTER_SUBMISSION";

// In sbatch, salloc and srun, once the options are read: draws a number if this program submits a job, srun only with --gang, and keeps
// the job's --signal. sbatch within a job draws a new number; the steps of a job keep that of the job.
void NumberSubmission();

// In the environment of a gang's tasks: when srun launched the step, in nanoseconds since 1970, as 16 digits of base 16. slurmctld
// may come back with an older state, and then gives a step's number again within the job.
inline constexpr char kLaunchVariable[] = "SLURM_MUSTER_LAUNCH";

// Sets kLaunchVariable. srun calls this once its options are read.
void NoteLaunch();

// In the job's environment: its --signal, as Slurm writes it ("USR1@90", "R:TERM").
inline constexpr char kWarningVariable[] = "SLURM_MUSTER_SIGNAL";

// In slurmstepd: the signal that Slurm sends to the job's steps before its end, and how many seconds before. None where the signal is for
// the batch script alone ("B:"), and where sbatch does not show its options (front_end.h).
void ReadWarning(spank_t spank, int* signal, uint32_t* seconds);

// In slurmstepd: the job's; 0 where it was submitted without the plugin.
uint64_t SubmissionOf(spank_t spank);
// In slurmstepd, in nanoseconds since 1970; 0 where srun has not said it.
int64_t LaunchOf(spank_t spank);

}  // namespace muster::plugin
