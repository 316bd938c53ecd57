// Keeping the daemon's memory from being paged out.
#pragma once

#include "base/result.h"

namespace muster {

// Locks what is mapped and what will be, each page when it is first touched. Needs CAP_IPC_LOCK or a limit
// (LimitMEMLOCK=infinity); the error says so. Call it once, when the daemon is up.
Status LockMemory();

// Gives back the pages of code that only the start needed (libraries' constructors, the dynamic linker): what is used
// again is mapped again from the page cache. To be called once the daemon is up, before LockMemory, which would keep
// them for good. A quarter of a musterd's memory.
void DropStartCode();

}  // namespace muster
