// Python's own view of a process: by py-spy where it is installed, else by the faulthandler that the muster package
// has registered in the program.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "daemon/hang/capture/native.h"

namespace muster::capture {

// {"by": "py-spy" or "faulthandler" or "", "text": [line...], "error": "" or why there is nothing}; null for a process
// that is no Python. `was_stopped`: a signal had stopped it before anything traced it. The kernel lets such a process run
// for a moment when its tracer leaves, so that its state now may not say so.
nlohmann::json PythonStacks(pid_t pid, bool was_stopped, Clock::time_point until);

}  // namespace muster::capture
