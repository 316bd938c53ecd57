// torchrun and its like, which start processes of their own in a member's place.
#pragma once

namespace muster::supervisor {

struct Launcher {
  const char* name = nullptr;  // as users call it; nullptr: there is none
  unsigned processes = 0;      // on a node, as the command line says; 0: it does not
};

// The one that a task's command line starts, itself or in the words of `bash -c`. What a program's own arguments say is none.
// `arguments` ends with a nullptr; nullptr: it is not known.
Launcher LauncherIn(const char* const* arguments);

}  // namespace muster::supervisor
