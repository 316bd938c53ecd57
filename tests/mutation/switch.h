// The run-time switch of tests/mutate, which includes this file in each source that it changes. MUSTER_MUTANT is the number of the mutant
// that is there; without that variable the program is the product. MUSTER_MUTANTS_REACHED names a file: at its end the program adds the
// numbers of the mutants whose places it has come to.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

// A mutant may compare what is always so, or leave a variable unused.
#pragma GCC diagnostic ignored "-Wduplicated-branches"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wunused-value"

namespace muster::mutation {

inline constexpr int kMost = 1000;

inline const int chosen = [] {
  const char* const number = std::getenv("MUSTER_MUTANT");
  return number != nullptr ? std::atoi(number) : 0;
}();

struct Reached {
  std::array<std::atomic<bool>, kMost + 1> mutants{};
  ~Reached() {
    const char* const name = std::getenv("MUSTER_MUTANTS_REACHED");
    std::FILE* const file = name != nullptr ? std::fopen(name, "a") : nullptr;
    if (file == nullptr) return;
    for (int number = 1; number <= kMost; ++number) {
      if (mutants[number]) std::fprintf(file, "%d\n", number);
    }
    std::fclose(file);
  }
};
inline Reached reached;

}  // namespace muster::mutation

inline bool muster_mutant(int number) {
  muster::mutation::reached.mutants[number].store(true, std::memory_order_relaxed);
  return number == muster::mutation::chosen;
}
