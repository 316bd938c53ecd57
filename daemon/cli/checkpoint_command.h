// `muster checkpoint ...`
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/ask.h"

namespace muster::cli {

// Adds the command to the program's. What it comes to is put into *result; both must outlive the parsing.
void AddCheckpointCommand(CLI::App* app, const Common* common, int* result);

// JOB or JOB.STEP, as squeue and sacct show it.
CLI::Validator JobName();

}  // namespace muster::cli
