// The plugin in srun.
#pragma once

namespace muster::plugin {

// Set in a step's environment by srun, for slurmstepd: a parallel debugger has srun in its hands.
inline constexpr char kDebuggerVariable[] = "MUSTER_PARALLEL_DEBUGGER";

// local_user_init: tells the remote side what only srun knows.
int OnLocal();

}  // namespace muster::plugin
