// `muster node enable-plugin`, `disable-plugin` and `check-plugin`: Slurm's plugin on this host.
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/ask.h"

namespace muster::cli {

// Adds them to `muster node`. What they come to is put into *result: 0 done, 1 the plugin does not load, or this host has no
// slurm.conf, 2 plugstack.conf cannot be written.
void AddPluginCommands(CLI::App* node, const Common* common, int* result);

}  // namespace muster::cli
