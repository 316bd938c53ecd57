// Slurm's plugin header as C++ needs it, with slurm.h, whose functions and structures change between releases.
#pragma once

extern "C" {
// In this order: spank.h uses slurm.h's names.
#include <slurm/slurm.h>

#include <slurm/spank.h>
}
