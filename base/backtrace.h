// Stacks to stderr, in lines of "file(+offset) [address]" (addr2line -Cfie file offset): where a thread stands that does not
// get on, and what a process dies of that crashes.
#pragma once

#include <functional>

namespace muster {

// To be called on the main thread. Gives what makes that thread write where it stands, soon; to be called from any thread.
// Takes SIGUSR2.
std::function<void()> TraceMainThread();

// From now on this process writes "PROGRAM has crashed: SIGSEGV" (or SIGABRT, SIGBUS, SIGFPE, SIGILL) and the stack of the
// thread that has, before it dies of the signal as it would have. PROGRAM: up to 63 bytes.
void TraceCrashes(const char* program);

}  // namespace muster
