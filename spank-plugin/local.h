// The plugin in srun.
#pragma once

namespace muster::plugin {

// Set in a step's environment by srun, for slurmstepd: a parallel debugger has srun in its hands.
inline constexpr char kDebuggerVariable[] = "MUSTER_PARALLEL_DEBUGGER";

// local_user_init: tells the remote side what only srun knows.
int OnLocal();

// slurm_spank_init_post_opt in sbatch, srun and salloc: ends the program with a sentence when the gang cannot be had on
// the nodes that are asked for, and asks for --no-kill.
int OnOptions();

}  // namespace muster::plugin
