// What an agent says of one member every second or so: all that hang detection and stragglers are told.
#pragma once

#include <cstdint>
#include <optional>

namespace muster::hang {

// What a member's process tree has used since it was started.
struct Activity {
  uint64_t cpu_ns = 0;    // of all its processes
  uint64_t io_bytes = 0;  // read and written
  // Whether a GPU worked for it since the last sample; nullopt: nobody can tell.
  std::optional<bool> gpu_busy;
  uint32_t blocked_threads = 0;  // in uninterruptible sleep
};

struct MemberReport {
  uint32_t rank = 0;
  // The newest step it has entered; nullopt: its program has not called progress() in this generation.
  std::optional<uint64_t> step;
  uint64_t calls = 0;            // of progress(); more of them at the same step say that a long phase goes on
  int64_t age_ns = 0;            // how long ago, at the time of this report, the last of them was
  bool checkpoint_busy = false;  // a save or a restore of this member is on its way
  bool suspended = false;        // Slurm has suspended it
  bool opened = false;           // its program has opened the gang in this generation
  std::optional<Activity> activity{};  // not in every report
};

}  // namespace muster::hang
