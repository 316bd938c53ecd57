// `muster net`: this host's part of a RoCE fabric.
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/ask.h"

namespace muster::cli {

// Adds `net` with `check` and `set` to `muster`. What it comes to is put into *result: 0 all is as roce.yaml says, or unknown;
// 1 something is not.
void AddNetCommand(CLI::App* app, const Common* common, int* result);

}  // namespace muster::cli
