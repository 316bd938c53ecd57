// Slurm's plugin header as C++ needs it. Nothing else of Slurm's is used: it changes between releases.
#pragma once

extern "C" {
// In this order: spank.h uses slurm.h's names.
#include <slurm/slurm.h>

#include <slurm/spank.h>
}
