// Copies of states: far larger than the CPU's caches, so their bytes go past these, and by several threads.
#pragma once

#include <stddef.h>

namespace muster::client {

// How many threads a copy may use: MUSTER_COPY_THREADS in the environment (1 to 64), else as many as there are CPUs for this
// process, four at most: they come near to what a memory controller can do.
unsigned CopyThreads();

// As memcpy. The threads end before it returns, and take no signal but those of faults. What is small is copied by the
// caller alone.
void LargeCopy(void* to, const void* from, size_t bytes, unsigned threads);

// Before memory of the program's is filled: where it seems to have no pages yet, it is to get huge ones, with a fault for each
// 2 MiB and not for each 4 KiB. A hint to the kernel, which stays with the memory.
void ExpectFill(void* to, size_t bytes);

}  // namespace muster::client
