// The plugin in slurmstepd: in the task that was forked for the user's program.
#pragma once

#include "spank-plugin/spank_header.h"

namespace muster::plugin {

// task_init_privileged, as root: reaches out for musterd and for what a container may hide later.
int OnTaskPrivileged(spank_t spank, int argc, char** argv);

// task_init, as the user: becomes the supervisor. Returns in each generation's child, for slurmstepd to exec.
int OnTask(spank_t spank, int argc, char** argv);

}  // namespace muster::plugin
