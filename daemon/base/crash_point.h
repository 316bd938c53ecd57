// A tool of the tests: named places at which musterd can be made to die as by a power cut, to show that no
// moment of a save, a commit or a restore leaves something half done that is taken for whole.
//
//   MUSTER_CRASH_AT=catalog.manifest_written     SIGKILL at the first passage
//   MUSTER_CRASH_AT=engine.chunk_written:3       at the third
//
// The variable is read once, when the program starts. Without it a point costs one comparison. The names are
// listed in tests/cluster/test_checkpoint_faults.py, which passes each of them. Thread-safe.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string_view>

namespace muster {
namespace detail {

inline const char* const crash_at = std::getenv("MUSTER_CRASH_AT");
inline std::atomic<long> crash_passages{0};

[[gnu::noinline]] inline void CrashHere(std::string_view point) {
  const std::string_view wanted(crash_at);
  const size_t colon = wanted.find(':');
  if (wanted.substr(0, colon) != point) return;
  // A count that is not a number counts as 1.
  const long passage = colon == std::string_view::npos ? 1 : std::strtol(crash_at + colon + 1, nullptr, 10);
  if (++crash_passages >= passage) std::raise(SIGKILL);
}

}  // namespace detail

inline void CrashPoint(const char* point) {
  if (detail::crash_at != nullptr) [[unlikely]]
    detail::CrashHere(point);
}

}  // namespace muster
