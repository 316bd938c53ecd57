// What a process and all its descendants have used so far, from /proc: what hang detection compares over time
// when a program reports no progress of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace muster {

// Sums over the tree as it is now. Children that have been waited for count at their parent; a process that
// leaves the tree otherwise takes what it used with it, so a sum may be smaller than the one before.
struct ProcessUsage {
  int64_t cpu_ns = 0;  // user and system time; the kernel counts in ticks, usually 10 ms
  // What read() and write() and their kin moved: files, pipes and sockets. 0 where /proc/PID/io may not be read.
  uint64_t read_bytes = 0;
  uint64_t write_bytes = 0;
  uint32_t processes = 0;
  uint32_t threads = 0;
  uint32_t blocked_threads = 0;  // in state D: waiting for a device, a file system, a driver
};

// kNotFound when there is no such process (any more). Processes that end while it looks are passed over. Reads
// files of /proc only, so it does not block; about 50 us a thread, so ask
// every few seconds at most. Thread-safe.
Result<ProcessUsage> ProcessTreeUsage(pid_t pid, const std::string& proc_root = "/proc");

}  // namespace muster
