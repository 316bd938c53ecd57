// sim_test --seeds 1-5000         runs these schedules; prints what they have reached, asserts a floor on it
// sim_test --fresh 5000           the same of so many, the first of which MUSTER_TEST_SEED says
// sim_test --pinned               those of pinned.h
// sim_test --seed 17 [--trace]    one of them; --trace shows what happens in it
// sim_test --replay 20            so many schedules run twice have byte-equal traces
// sim_test --mutation NAME        a planted bug is found within the budget of --seeds
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>

#include "tests/sim/pinned.h"
#include "tests/sim/simulation.h"
#include "tests/support/test_seed.h"

namespace muster::sim {
namespace {

constexpr uint64_t kBudget = 10'000;
constexpr uint64_t kLeastEvents = 200;

Bug Named(const std::string& name) {
  if (name == "no_fencing") return Bug::kNoFencing;
  if (name == "stale_term") return Bug::kStaleTerm;
  if (name == "double_commit") return Bug::kDoubleCommit;
  if (name == "lost_stop") return Bug::kLostStop;
  if (name == "early_start") return Bug::kEarlyStart;
  if (name == "start_not_kept") return Bug::kStartNotKept;
  if (name == "own_term_deposes") return Bug::kOwnTermDeposes;
  if (name == "own_fence_deposes") return Bug::kOwnFenceDeposes;
  if (name == "raise_asked_once") return Bug::kRaiseAskedOnce;
  std::cerr << "no mutation is called " << name << "\n";
  std::exit(2);
}

int Fail(uint64_t seed, const std::string& why) {
  std::cerr << "seed " << seed << ": " << why << "\nthe same again: sim_test --seed " << seed << " --trace\n";
  return 1;
}

int RunOne(uint64_t seed, bool trace, Bug bug) {
  Coverage coverage;
  Simulation simulation(seed, trace, bug, coverage);
  const std::string failure = simulation.Run();
  std::cout << simulation.world.trace();
  return failure.empty() ? 0 : Fail(seed, failure);
}

int RunPinned() {
  for (const uint64_t seed : kPinned) {
    Coverage coverage;
    Simulation simulation(seed, false, Bug::kNone, coverage);
    if (const std::string failure = simulation.Run(); !failure.empty()) return Fail(seed, failure);
  }
  return 0;
}

int RunMany(uint64_t first, uint64_t last) {
  std::cout << "schedules " << first << " to " << last << "\n";
  Coverage coverage;
  for (uint64_t seed = first; seed <= last; ++seed) {
    Simulation simulation(seed, false, Bug::kNone, coverage);
    const std::string failure = simulation.Run();
    if (!failure.empty()) return Fail(seed, failure);
    if (simulation.world.events() < kLeastEvents) return Fail(seed, "hardly anything happens in it");
  }
  std::cout << coverage.Text();
  const std::string missing = coverage.Missing();
  if (missing.empty()) return 0;
  std::cerr << "not reached:\n" << missing;
  return 1;
}

int Replay(uint64_t count) {
  for (uint64_t seed = 1; seed <= count; ++seed) {
    Coverage coverage;
    Simulation one(seed, true, Bug::kNone, coverage);
    (void)one.Run();
    Simulation two(seed, true, Bug::kNone, coverage);
    (void)two.Run();
    if (one.world.trace() != two.world.trace()) return Fail(seed, "two runs differ");
  }
  return 0;
}

int Mutate(const std::string& name) {
  for (uint64_t seed = 1; seed <= kBudget; ++seed) {
    Coverage coverage;
    Simulation simulation(seed, false, Named(name), coverage);
    const std::string failure = simulation.Run();
    if (failure.empty()) continue;
    std::cout << name << " is found by seed " << seed << ": " << failure << "\n";
    return 0;
  }
  std::cerr << name << " is not found by " << kBudget << " schedules\n";
  return 1;
}

int Main(int count, char** arguments) {
  uint64_t seed = 0;
  bool trace = false;
  Bug bug = Bug::kNone;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const std::string value = i + 1 < count ? arguments[i + 1] : "";
    if (name == "--trace") {
      trace = true;
    } else if (name == "--seed") {
      seed = std::strtoull(value.c_str(), nullptr, 10);
      ++i;
    } else if (name == "--with") {
      bug = Named(value);
      ++i;
    } else if (name == "--seeds") {
      const size_t dash = value.find('-');
      return RunMany(std::strtoull(value.c_str(), nullptr, 10),
                     std::strtoull(value.c_str() + dash + 1, nullptr, 10));
    } else if (name == "--fresh") {
      return RunMany(FirstSchedule(), FirstSchedule() + std::strtoull(value.c_str(), nullptr, 10) - 1);
    } else if (name == "--pinned") {
      return RunPinned();
    } else if (name == "--replay") {
      return Replay(std::strtoull(value.c_str(), nullptr, 10));
    } else if (name == "--mutation") {
      return Mutate(value);
    } else {
      std::cerr << "unknown: " << name << "\n";
      return 2;
    }
  }
  return RunOne(seed, trace, bug);
}

}  // namespace
}  // namespace muster::sim

int main(int count, char** arguments) {
  return muster::sim::Main(count, arguments);
}
