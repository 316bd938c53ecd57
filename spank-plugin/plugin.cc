// The symbols that Slurm looks for, and nothing but the way to the context's own file.
#include "spank-plugin/job_nodes.h"
#include "spank-plugin/local.h"
#include "spank-plugin/plugin_options.h"
#include "spank-plugin/remote.h"
#include "spank-plugin/spank_header.h"
#include "spank-plugin/submission.h"

extern "C" {

// Without these declarations C++ gives the constants of SPANK_PLUGIN internal linkage, and Slurm finds no
// plugin.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(muster, 1)

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  switch (spank_context()) {
    case S_CTX_REMOTE:
    case S_CTX_SLURMD:
      // The two whose log an administrator reads.
      muster::plugin::ReadArguments(argc, argv, true);
      return muster::plugin::RegisterGangOption(spank);
    case S_CTX_LOCAL:
      muster::plugin::ForgetLostNodes();
      [[fallthrough]];
    case S_CTX_ALLOCATOR:
      return muster::plugin::RegisterGangOption(spank);
    default:
      return 0;
  }
}

int slurm_spank_init_post_opt(spank_t /*spank*/, int /*argc*/, char** /*argv*/) {
  const spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) return 0;
  muster::plugin::NumberSubmission();  // of sbatch without --gang too: the script may have an srun with it
  muster::plugin::NoteLaunch();
  return muster::plugin::OnOptions();
}

int slurm_spank_local_user_init(spank_t spank, int argc, char** argv) {
  return muster::plugin::OnLocal(spank, muster::plugin::ReadArguments(argc, argv, false).muster);
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char** argv) {
  return muster::plugin::OnTaskPrivileged(spank, argc, argv);
}

int slurm_spank_task_init(spank_t spank, int argc, char** argv) {
  return muster::plugin::OnTask(spank, argc, argv);
}

}  // extern "C"
