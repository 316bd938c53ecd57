// Programs that come with musterd and that it starts: what hangs or breaks in them leaves musterd alone.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace muster {

// Where the program `name` is: beside this one, as in a build, else in ../`directory`, as on a node.
std::string HelperProgram(std::string_view name, std::string_view directory = "libexec/muster");

// Starts it in a process group of its own, with no signal blocked or ignored, /dev/null as its input, and of this process's
// environment only PATH. `descriptors`: which of this process's it has under which number; it has stderr besides. kUnavailable:
// why it cannot be started.
Result<pid_t> StartHelper(const std::string& program, std::vector<std::string> arguments,
                          const std::vector<std::pair<int, int>>& descriptors);

// Takes the process's status when it ends, however late that is. On the loop's thread.
void ReapLater(Loop& loop, pid_t pid);

}  // namespace muster
