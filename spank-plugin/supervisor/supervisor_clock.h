// The two clocks: deadlines are monotonic milliseconds, what is told to others is real time in nanoseconds.
#pragma once

#include <stdint.h>
#include <time.h>

namespace muster::supervisor {

inline int64_t MonotonicMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

inline int64_t RealtimeNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// A deadline that may be unset.
class Deadline {
 public:
  void Set(int64_t at_ms) { at_ms_ = at_ms; }
  void Clear() { at_ms_ = kNever; }
  [[nodiscard]] bool IsSet() const { return at_ms_ != kNever; }
  [[nodiscard]] bool Passed(int64_t now_ms) const { return now_ms >= at_ms_; }
  [[nodiscard]] int64_t at_ms() const { return at_ms_; }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  int64_t at_ms_ = kNever;
};

}  // namespace muster::supervisor
