// srun's exit code is its gang's. Slurm takes the tasks of a node that was lost for srun's own failure (137, from 23.02 on 1), although
// the others have gone on and succeeded.
#pragma once

#include <stdint.h>

namespace muster::plugin {

enum class Outcome { kUnknown, kRuns, kSucceeded, kFailed };

// What `muster --json status` says of the gang that srun launched at that time: its number may have been another gang's.
Outcome OutcomeIn(const char* status, int64_t launched_ns);

// For srun, once its step is known: where the gang has succeeded, srun ends with 0, whatever it would have ended with. A gang's record
// is asked for only when srun fails.
void EndAsTheGang(uint32_t job_id, uint32_t step_id, const char* muster);

}  // namespace muster::plugin
