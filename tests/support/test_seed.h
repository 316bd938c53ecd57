// Where the random schedules of a test begin.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace muster {

// MUSTER_TEST_SEED, which ./test.sh takes from the commit's id, so that every commit is tested by schedules of its own; 1
// without it.
inline uint64_t TestSeed() {
  const char* const seed = std::getenv("MUSTER_TEST_SEED");
  const uint64_t number = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0;
  return number != 0 ? number : 1;
}

// The first of at most a million schedules: those of two commits are different ones.
inline uint64_t FirstSchedule() {
  return TestSeed() * 1'000'000;
}

}  // namespace muster
