// What muster-run makes of torchrun's command line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::run {

struct CommandLine {
  bool help = false;
  bool python = true;                // `program` is what Python is given; else it is executed itself
  std::vector<std::string> program;  // with its arguments; "-m" before a module
  std::string processes;             // of --nproc-per-node; "": not given
};

// getenv, or what a test has in its place.
using Variables = std::function<const char*(const char* name)>;

// Reads what follows "muster-run", which is what follows "torchrun" in PyTorch 2.13, with dashes or underscores, and the
// variables PET_... that torchrun reads. Errors are a sentence about what is wrong or cannot be had.
Result<CommandLine> ReadCommandLine(const std::vector<std::string>& words, const Variables& variables);

// Whether --nproc-per-node means the number of tasks that the gang has on this node. `gpus` is what Slurm says of the job's GPUs
// here, "" when it says nothing. The error names the line of the sbatch script to change.
Status CheckProcesses(const std::string& processes, uint32_t tasks, const std::string& gpus);

// For muster-run --help.
std::string Usage();

}  // namespace muster::run
