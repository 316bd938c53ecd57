// User-space stacks of all threads of a process, by ptrace and the unwind tables of its executable and libraries.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace muster::capture {

using Clock = std::chrono::steady_clock;

// Threads of one process, stopped. The destructor lets them go on (so does the kernel when this process dies); a
// process that was stopped by a signal stays stopped.
class StoppedThreads {
 public:
  // Seizes the threads and asks them to stop; those that have not by `until` (uninterruptible sleep) are let go.
  // `still_right` is asked once the process is seized and can no longer be another; if it says no, nothing is stopped.
  StoppedThreads(pid_t pid, const std::vector<pid_t>& threads, Clock::time_point until,
                 const std::function<bool()>& still_right);
  ~StoppedThreads();
  StoppedThreads(const StoppedThreads&) = delete;
  StoppedThreads& operator=(const StoppedThreads&) = delete;

  void Release();
  [[nodiscard]] const std::vector<pid_t>& stopped() const { return stopped_; }
  // Why none or not all are; "" when all are.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }

 private:
  std::vector<pid_t> seized_;
  std::vector<pid_t> stopped_;
  std::map<pid_t, int> signals_;
  std::string trouble_;
};

// Unwinds the stopped threads, releases them, and then looks the names up. Threads with the same frames together:
// {"groups": [{"threads": [tid...], "name", "frames": ["function+0x12 library", ...]}], "error": "" or why not}.
// Parses the executables that the process has mapped: call it with no more rights than the process has. One
// process a call at a time.
nlohmann::json NativeStacks(pid_t pid, StoppedThreads& threads);

}  // namespace muster::capture
