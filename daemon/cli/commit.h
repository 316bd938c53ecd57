// `muster checkpoint commit`: closes a step's directory in MUSTER_CHECKPOINT_DIR (--gang=files=yes).
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/ask.h"

namespace muster::cli {

// Adds it to `muster checkpoint`. What it comes to is put into *result: 0 done (and with --wait: a checkpoint), 1 no
// checkpoint, or none yet, 2 no step's directory.
void AddCommitCommand(CLI::App* checkpoint, const Common* common, int* result);

}  // namespace muster::cli
