// The plugin in srun.
#pragma once

#include "spank-plugin/spank_header.h"

namespace muster::plugin {

// Set in a step's environment by srun, for slurmstepd: a parallel debugger has srun in its hands.
inline constexpr char kDebuggerVariable[] = "MUSTER_PARALLEL_DEBUGGER";

// Set in the environment of a step with --gang by srun, for slurmstepd, where the step is no gang all the same, or another one. Slurm takes variables
// of this kind along even under --export=NONE.
inline constexpr char kStepVariable[] = "SLURM_MUSTER_STEP";
inline constexpr char kPlain[] =
    "plain";  // its tasks run as without --gang, which they have from the job only
inline constexpr char kRefused[] = "refused";  // its tasks fail: srun has said why
// "lost=2": the job has lost two nodes, and the step is a gang with the job's --gang. Its spares are two fewer: spares of the job have taken
// the places of those nodes.
inline constexpr char kLost[] = "lost=";

// local_user_init, once the step has its nodes: tells the remote side what only srun knows.
int OnLocal(spank_t spank, const char* muster);

// slurm_spank_init_post_opt in sbatch, srun and salloc: ends the program with a sentence when the gang cannot be had on
// the nodes that are asked for, and asks for --no-kill.
int OnOptions();

}  // namespace muster::plugin
