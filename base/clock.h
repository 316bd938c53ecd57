// The clocks that daemons share with the outside.
#pragma once

#include <cstdint>
#include <ctime>

namespace muster {

inline int64_t RealtimeNs() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Goes on while the machine sleeps, never back.
inline int64_t BoottimeNs() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace muster
