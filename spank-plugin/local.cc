#include "spank-plugin/local.h"

#include <stdlib.h>
#include <string.h>

#include "spank-plugin/component_list.h"
#include "spank-plugin/front_end.h"
#include "spank-plugin/no_kill.h"
#include "spank-plugin/plugin_options.h"
#include "wire/gang_options.h"

// srun's own variable of the MPIR debugger interface; there is none in the other programs that load the
// plugin.
extern "C" __attribute__((weak)) int MPIR_being_debugged;

namespace muster::plugin {
namespace {

// A plugin that is `optional` in plugstack.conf cannot refuse by what it returns.
[[noreturn]] void Refuse(const char* why) {
  slurm_error("%s", why);
  exit(1);
}

}  // namespace

int OnOptions() {
  static unsigned read = 0;  // of the components before this one
  const bool given = Gang().times > read;
  read = Gang().times;
  if (spank_context() == S_CTX_LOCAL) {
    const char* groups = front_end::IsSet("het-group") ? front_end::Get("het-group") : nullptr;
    if (const char* why = AddComponent(given, Gang().value, groups != nullptr ? groups : "")) Refuse(why);
  }
  if (!given) return 0;
  // sbatch and salloc hand the first component's on to the others, which it need not fit.
  static bool handed_on = false;
  const bool own = spank_context() == S_CTX_LOCAL || !handed_on;
  handed_on = true;
  const uint32_t nodes = own ? front_end::NodesAskedFor() : 0;
  wire::GangOptions options;
  char error[wire::kMaxOptionError];
  if (nodes == 0 ||
      (wire::ParseGangOptions(Gang().value, strlen(Gang().value), &options, error, sizeof(error)) &&
       wire::CheckNodes(options, nodes, error, sizeof(error)))) {
    AskForNoKill();
    return 0;
  }
  Refuse(error);
}

int OnLocal() {
  if (!Gang().given) return 0;
  if (&MPIR_being_debugged != nullptr && MPIR_being_debugged != 0) setenv(kDebuggerVariable, "1", 1);
  return 0;
}

}  // namespace muster::plugin
