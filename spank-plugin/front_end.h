// The options of the program that has loaded the plugin: sbatch, salloc or srun. SPANK has no item for them before there
// is a job; Slurm's own functions for cli_filter plugins do, by name. The structure they work on is a variable of the
// program, which up to 24.05 exports it.
#pragma once

#include <stdint.h>

namespace muster::plugin::front_end {

// Whether the functions below can work; false with a Slurm whose programs do not show their options.
bool Readable();

// For slurm_spank_init_post_opt, which Slurm calls for each component of a heterogeneous job with that one's options.
// `name` is an option's long name.
bool IsSet(const char* name);
// Whether the user gave the option on the command line, and not by the environment; `letter` is its short name.
bool IsGiven(char letter);
// The value as text, nullptr when there is none. It is never freed: these programs live for a moment.
const char* Get(const char* name);
// False when Slurm does not take it.
bool Set(const char* name, const char* value);

// What -N asks for, at most; 0 when that is not known.
uint32_t NodesAskedFor();

}  // namespace muster::plugin::front_end
