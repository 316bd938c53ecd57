#include "spank-plugin/local.h"

#include <stdlib.h>

#include "spank-plugin/options.h"

// srun's own variable of the MPIR debugger interface; there is none in the other programs that load the
// plugin.
extern "C" __attribute__((weak)) int MPIR_being_debugged;

namespace muster::plugin {

int OnLocal() {
  if (!Gang().given) return 0;
  if (&MPIR_being_debugged != nullptr && MPIR_being_debugged != 0) setenv(kDebuggerVariable, "1", 1);
  return 0;
}

}  // namespace muster::plugin
