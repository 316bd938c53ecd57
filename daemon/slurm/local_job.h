// The end of a job on this node, without slurmctld: when the job's srun is on a host that is lost, slurmstepd would wait
// for it, and slurmctld for slurmstepd; and on a batch host that is cut off, script and tasks would run on, beside the
// job's next run elsewhere.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/result.h"

namespace muster {

// Kills (SIGKILL) the job's slurmstepds on this node, so that nobody reports its end as the job's own, and then all that
// belongs to it: what is below a slurmstepd or in a cgroup of the job. slurmd notices, runs the epilog, and goes on.
// Blocks until nothing is left, `limit` at most, reading /proc several times: for a worker thread. Needs root and CAP_KILL.
// kUnavailable: processes are left, named in the message.
Status EndJobHere(uint32_t job_id, std::chrono::milliseconds limit);

}  // namespace muster
