// Where the threads of members' programs are: native, kernel and Python stacks.
//
// The work is done by `muster-stacks`, one process a member, so that neither ptrace nor a hanging file system nor
// a damaged executable touches musterd. docs/formats.md specifies what it prints.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"

namespace muster::hang {

inline constexpr size_t kMaxStacks = 64 * 1024;  // bytes of one member

struct MemberStacks {
  pid_t supervisor = 0;
  std::string lines;  // JSON, one object a line, each whole; what was there at the deadline
  bool complete = false;
  std::string error;        // why it is not complete; empty if it is
  bool dump_asked = false;  // PyTorch's flight recorder has been
};

// Captures everything below each supervisor (never the supervisor itself, nor any process that is not its
// descendant), all at once, and calls `done` once on the loop: as soon as the last is ready, or at the deadline with
// what there is by then. With `ask_dump` the programs' flight recorders are asked for their dumps, where the environment names their
// FIFOs. Threads are stopped for some milliseconds each and go on unharmed. Returns at once. The
// supervisors must be alive and unreaped until `done`. Call on the loop's thread; when the loop ends first, `done` is
// never called.
void CaptureStacks(Loop& loop, const std::string& program, const std::vector<pid_t>& supervisors,
                   std::chrono::milliseconds deadline, bool ask_dump,
                   std::function<void(std::vector<MemberStacks>)> done);

// For people: one block a process, threads with the same stack together.
std::string StacksText(std::string_view lines);

// One line, at most 200 bytes: where the first process's main thread is, Python's view first. For comparing many
// ranks. Empty when nothing is known.
std::string StacksSummary(std::string_view lines);

}  // namespace muster::hang
