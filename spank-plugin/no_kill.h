// --no-kill for gangs: without it Slurm ends the whole job when one of its nodes fails, and no spare could take over. Users
// of --gang need not know.
#pragma once

namespace muster::plugin {

// For slurm_spank_init_post_opt of a gang's sbatch, salloc or srun. What the user says about --no-kill stays. May start
// the program again, with the option in its environment, where it cannot be set; says what to add where that
// cannot be done either.
void AskForNoKill();

}  // namespace muster::plugin
