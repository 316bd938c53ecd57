// `muster doctor`: what is wrong on this host, and how to mend it.
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/ask.h"

namespace muster::cli {

// Adds it to `muster`. What it comes to is put into *result: 0 all is well, 1 something must be mended.
void AddDoctorCommand(CLI::App* app, const Common* common, int* result);

}  // namespace muster::cli
