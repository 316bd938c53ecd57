// The --gang option and the plugin's own arguments in plugstack.conf.
#pragma once

#include <stdint.h>

#include "spank-plugin/spank_header.h"

namespace muster::plugin {

// What was asked for; filled in by Slurm calling the option's callback, in every context before task_init.
struct GangOption {
  bool given = false;      // and not `off`
  bool inherited = false;  // the environment has the job's, which Slurm reads before this program's own
  unsigned times = 0;      // so far: a heterogeneous srun reads the options of one component after the other
  const char* value = "";  // what follows --gang=
  const char* error =
      "";  // remote context: why the value is not taken after all (another version validated it)
};

// Makes --gang known; to be called in slurm_spank_init of the contexts that have options. A SPANK error code.
int RegisterGangOption(spank_t spank);
const GangOption& Gang();
// Lowers the spares of Gang()'s value by so many nodes, to 0 at least.
void LeaveOutSpares(uint32_t nodes);

// Arguments of the line in plugstack.conf.
struct Arguments {
  const char* socket;
  bool forward_signals = true;  // signals=tasks
  uint32_t wait_seconds = 10;
  const char* muster = "/usr/bin/muster";  // the command
};

// Reads them; what is not known is named in Slurm's log and skipped. The strings stay argv's.
Arguments ReadArguments(int argc, char** argv, bool complain);

}  // namespace muster::plugin
