// A tool of the tests: named places at which musterd can be made to die as by a power cut, or to stand still until it is
// woken, to show that no moment of a save, a commit or a restore leaves something half done that is taken for whole.
//
//   MUSTER_CRASH_AT=catalog.manifest_written     SIGKILL at the first passage
//   MUSTER_CRASH_AT=engine.chunk_written:3       at the third
//   MUSTER_STOP_AT=engine.chunk_written:3        SIGSTOP at the third, and only there
//
// The variables are read once, when the program starts. Without them a point costs two comparisons. Tests in
// tests/cluster pass each of them (most in test_checkpoint_crashes.py). Thread-safe.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string_view>

namespace muster {
namespace detail {

inline const char* const crash_at = std::getenv("MUSTER_CRASH_AT");
inline const char* const stop_at = std::getenv("MUSTER_STOP_AT");
inline std::atomic<long> crash_passages{0};
inline std::atomic<long> stop_passages{0};

// How many passages of the point `wanted` names are left before what is wanted happens; 0: now. Negative: it is over, or of
// another point.
inline long PassagesLeft(std::string_view wanted, std::string_view point, std::atomic<long>& passages) {
  const size_t colon = wanted.find(':');
  if (wanted.substr(0, colon) != point) return -1;
  // A count that is not a number counts as 1.
  const long passage =
      colon == std::string_view::npos ? 1 : std::strtol(wanted.data() + colon + 1, nullptr, 10);
  return (passage < 1 ? 1 : passage) - ++passages;
}

[[gnu::noinline]] inline void CrashHere(std::string_view point) {
  if (PassagesLeft(crash_at, point, crash_passages) == 0) std::raise(SIGKILL);
}

[[gnu::noinline]] inline void StopHere(std::string_view point) {
  if (PassagesLeft(stop_at, point, stop_passages) == 0) std::raise(SIGSTOP);
}

}  // namespace detail

inline void CrashPoint(const char* point) {
  if (detail::crash_at != nullptr) [[unlikely]]
    detail::CrashHere(point);
  if (detail::stop_at != nullptr) [[unlikely]]
    detail::StopHere(point);
}

}  // namespace muster
