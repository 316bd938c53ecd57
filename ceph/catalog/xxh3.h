// libxxhash, by its own way to use the widest vectors of the CPU that runs it, where it was built with that. C and C++.
#pragma once

#include <xxhash.h>

#ifdef MUSTER_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif
