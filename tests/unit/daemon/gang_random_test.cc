// Thousands of seeded fault schedules: at no step do two generations run, and when faults stop the gang ends.
// MUSTER_SEED=N runs schedule N alone, and shows it; MUSTER_SCHEDULES=N runs so many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/unit/daemon/gang_simulation.h"

namespace muster::gang {
namespace {

// The machine is one thread's pure code: a sanitizer, fifty times slower, sees all of it in a few schedules.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSchedules = 1'000;
#else
constexpr uint64_t kSchedules = 20'000;
#endif

uint64_t Schedules() {
  const char* chosen = ::getenv("MUSTER_SCHEDULES");
  return chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : kSchedules;
}

TEST(GangUnderRandomFaults, NoTwoGenerationsRunAtOnceAndEveryGangEnds) {
  if (const char* chosen = ::getenv("MUSTER_SEED")) {
    Simulation simulation(std::strtoull(chosen, nullptr, 10), true);
    const std::string failure = simulation.Run();
    std::cout << simulation.trace();
    ASSERT_EQ(failure, "");
    return;
  }
  const uint64_t schedules = Schedules();
  uint64_t generations = 0;
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    Simulation simulation(seed, false);
    const std::string failure = simulation.Run();
    generations += simulation.generations();
    if (failure.empty()) continue;
    Simulation again(seed, true);
    (void)again.Run();
    FAIL() << again.trace() << failure << "\nthis schedule again: MUSTER_SEED=" << seed;
  }
  EXPECT_GT(generations, schedules) << "the schedules hardly restart anything";
  std::cout << schedules << " schedules, " << generations << " generations\n";
}

}  // namespace
}  // namespace muster::gang
