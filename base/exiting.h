// Tells processes that SIGKILL has ended and that are on their way out from those that are stuck in the kernel. Needs libc only.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace muster {

// Field `number` (from 1, as proc(5) counts) of /proc/PID/stat, which must be behind the name in parentheses.
inline const char* StatField(const char* stat, int number) {
  const char* at = strrchr(stat, ')');
  for (int field = 2; at != nullptr && field < number; ++field) at = strchr(at + 1, ' ');
  return at != nullptr ? at + 1 : "0";
}

// Whether a thread runs no more of its program, nor of a system call: the thread is dead, exits, or is held at its end by a tracer, from
// which SIGKILL takes a thread anywhere else. `stat` is the text of its /proc/PID/task/TID/stat.
inline bool OnlyExits(const char* stat) {
  constexpr unsigned long kExits = 0x4;  // PF_EXITING of the kernel's sched.h
  return strchr("ZXt", *StatField(stat, 3)) != nullptr ||
         (strtoul(StatField(stat, 9), nullptr, 10) & kExits) != 0;
}

// What is left of such processes.
struct Exiting {
  int count = 0;
  uint64_t ticks = 0;  // of processor time, clock ticks
  uint64_t threads = 0;
  uint64_t pages = 0;  // resident

  // Counts a process. `stat` is the text of its /proc/PID/stat.
  void Add(const char* stat) {
    constexpr int kUserTime = 14;
    constexpr int kKernelTime = 15;
    constexpr int kThreads = 20;
    constexpr int kResident = 24;
    const auto field = [stat](int number) { return strtoull(StatField(stat, number), nullptr, 10); };
    ++count;
    ticks += field(kUserTime) + field(kKernelTime);
    threads += field(kThreads);
    pages += field(kResident);
  }
  Exiting& operator+=(const Exiting& more) {
    count += more.count;
    ticks += more.ticks;
    threads += more.threads;
    pages += more.pages;
    return *this;
  }
  // Whether the processes are on their way out, given what was left `ms` earlier. They are if the number of processes, threads or
  // pages has fallen. They also are if the kernel has worked for them for a fiftieth of the time, as it does on a busy node too
  // while it frees memory that it counts as theirs no more. A driver that waits for dead hardware looks only now and then.
  [[nodiscard]] bool GoesOnFrom(const Exiting& before, int64_t ms) const {
    if (count < before.count || threads < before.threads || pages < before.pages) return true;
    const auto ticks_a_second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
    return ticks >= before.ticks + ticks_a_second * static_cast<uint64_t>(ms) / 1000 / 50 + 1;
  }
};

// Decides when such processes are stuck: when nothing of them has gone for `unkillable_after`, and after five times as long in any
// case. All times are milliseconds of one clock.
class ExitWatch {
 public:
  void Begin(int64_t now, int64_t unkillable_after) {
    unkillable_after_ = unkillable_after;
    stuck_at_ = now + unkillable_after;
    last_at_ = now + kMost * unkillable_after;
    look_at_ = now + Interval();
    left_ = {};
  }
  // To be called when this process has stood still, for the exiting processes may have stood still too. However often it is called,
  // stuck_at() passes in the end.
  void Restart(int64_t now) {
    stuck_at_ = now + (now < last_at_ ? unkillable_after_ : Interval());
    look_at_ = now + Interval();
  }
  [[nodiscard]] bool LookDue(int64_t now) const { return now >= look_at_; }
  void Look(const Exiting& left, int64_t now) {
    if (left_.count > 0 && left.GoesOnFrom(left_, Interval()) && now < last_at_)
      stuck_at_ = now + unkillable_after_;
    look_at_ = now + Interval();
    left_ = left;
  }
  // As far as is known now.
  [[nodiscard]] int64_t stuck_at() const { return stuck_at_; }

 private:
  static constexpr int64_t kMost = 5;
  static constexpr int64_t kLooks = 10;  // in unkillable_after
  [[nodiscard]] int64_t Interval() const { return unkillable_after_ / kLooks; }

  int64_t unkillable_after_ = 0;
  int64_t stuck_at_ = 0;
  int64_t last_at_ = 0;  // stuck_at_ is put off until then
  int64_t look_at_ = 0;
  Exiting left_;  // at the last look
};

}  // namespace muster
