// sim_test --seeds 1-5000         runs these schedules; prints what they have reached, asserts a floor on it
// sim_test --fresh 5000           the same of so many, the first of which MUSTER_TEST_SEED says
// sim_test --pinned               those of pinned.h
// sim_test --seed 17 [--trace]    one of them; --trace shows what happens in it
// sim_test --replay 20            so many schedules run twice have byte-equal traces
// sim_test --digest 1-100         one number of these schedules' traces
// sim_test --survey 1-5000        runs all of them, and prints each that breaks an invariant
//
// sim_planted is the same program, built with the bugs of planted_bugs.h:
// sim_planted --planted NAME      the bug is found, by its invariant, in three of four ranges of schedules
// sim_planted --seed 17 --with NAME --trace
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/planted.h"
#include "tests/sim/pinned.h"
#include "tests/sim/planted_bugs.h"
#include "tests/sim/simulation.h"
#include "tests/support/test_seed.h"

namespace muster::sim {
namespace {

constexpr uint64_t kRanges = 4;
constexpr uint64_t kFoundIn = 3;
constexpr uint64_t kBudget = 10'000;  // schedules of a range
constexpr uint64_t kLeastEvents = 200;
constexpr uint64_t kThinOneIn =
    10'000;  // schedules: the job is over before its gang has begun, or soon after

using Range = std::pair<uint64_t, uint64_t>;

[[noreturn]] void Refuse(const std::string& why) {
  std::cerr << "sim_test: " << why << "\n";
  std::exit(2);
}

uint64_t Number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) Refuse("not a number: " + std::string(text));
  return number;
}

Range RangeOf(std::string_view text) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) Refuse("not a range: " + std::string(text));
  return {Number(text.substr(0, dash)), Number(text.substr(dash + 1))};
}

// The bug is there from now on.
const PlantedBug& Plant(std::string_view name) {
  for (const PlantedBug& bug : kPlantedBugs) {
    if (bug.name != name) continue;
#ifdef MUSTER_PLANTED_BUGS
    planted = bug.name;
    return bug;
#else
    Refuse("only sim_planted has bugs");
#endif
  }
  Refuse("no bug is called " + std::string(name));
}

int Fail(uint64_t seed, const std::string& why) {
  std::cerr << "seed " << seed << ": " << why << "\nthe same again: sim_test --seed " << seed << " --trace\n";
  return 1;
}

int RunOne(uint64_t seed, bool trace) {
  Coverage coverage;
  Simulation simulation(seed, trace, coverage);
  const std::string failure = simulation.Run();
  std::cout << simulation.world.trace();
  return failure.empty() ? 0 : Fail(seed, failure);
}

int RunPinned() {
  for (const uint64_t seed : kPinned) {
    Coverage coverage;
    Simulation simulation(seed, false, coverage);
    if (const std::string failure = simulation.Run(); !failure.empty()) return Fail(seed, failure);
  }
  return 0;
}

int RunMany(const Range& seeds) {
  std::cout << "schedules " << seeds.first << " to " << seeds.second << "\n";
  Coverage coverage;
  uint64_t thin = 0;
  for (uint64_t seed = seeds.first; seed <= seeds.second; ++seed) {
    Simulation simulation(seed, false, coverage);
    const std::string failure = simulation.Run();
    if (!failure.empty()) return Fail(seed, failure);
    if (simulation.world.events() >= kLeastEvents) continue;
    if (++thin > 1 + (seeds.second - seeds.first) / kThinOneIn)
      return Fail(seed,
                  fmt::format("hardly anything happens in {} schedules, of which this is the last", thin));
  }
  std::cout << coverage.Text();
  const std::string missing = coverage.Missing();
  if (missing.empty()) return 0;
  std::cerr << "not reached:\n" << missing;
  return 1;
}

// All that these schedules break, and not the first of it.
int Survey(const Range& seeds) {
  uint64_t broken = 0;
  for (uint64_t seed = seeds.first; seed <= seeds.second; ++seed) {
    Coverage coverage;
    Simulation simulation(seed, false, coverage);
    const std::string failure = simulation.Run();
    if (failure.empty()) continue;
    ++broken;
    std::cout << seed << ": " << failure << "\n";
  }
  std::cout << broken << " of " << seeds.second - seeds.first + 1 << " schedules break an invariant\n";
  return broken == 0 ? 0 : 1;
}

int Replay(uint64_t count) {
  for (uint64_t seed = 1; seed <= count; ++seed) {
    Coverage coverage;
    Simulation one(seed, true, coverage);
    (void)one.Run();
    Simulation two(seed, true, coverage);
    (void)two.Run();
    if (one.world.trace() != two.world.trace()) return Fail(seed, "two runs differ");
  }
  return 0;
}

int Digest(const Range& seeds) {
  uint64_t digest = 14'695'981'039'346'656'037U;  // FNV-1a
  for (uint64_t seed = seeds.first; seed <= seeds.second; ++seed) {
    Coverage coverage;
    Simulation simulation(seed, true, coverage);
    (void)simulation.Run();
    for (const char c : simulation.world.trace())
      digest = (digest ^ static_cast<unsigned char>(c)) * 1'099'511'628'211U;
  }
  std::cout << digest << "\n";
  return 0;
}

// What another invariant finds does not count.
int FindPlanted(const PlantedBug& bug) {
  uint64_t found = 0;
  for (uint64_t range = 0; range < kRanges; ++range) {
    const uint64_t first = range * kBudget + 1;
    uint64_t others = 0;
    uint64_t seed = first;
    for (; seed < first + kBudget; ++seed) {
      Coverage coverage;
      Simulation simulation(seed, false, coverage);
      const std::string failure = simulation.Run();
      if (failure.empty()) continue;
      if (simulation.world.broken() == bug.found_by) {
        ++found;
        std::cout << bug.name << ": schedule " << seed - first + 1 << " of range " << range + 1 << " ("
                  << others << " before it have broken others): " << failure << "\n";
        break;
      }
      ++others;
    }
    if (seed == first + kBudget)
      std::cout << bug.name << ": not found in range " << range + 1 << " (" << others
                << " schedules have broken others)\n";
  }
  if (found >= kFoundIn) return 0;
  std::cerr << bug.name << " is found by " << Name(bug.found_by) << " in " << found << " of " << kRanges
            << " ranges\n";
  return 1;
}

int Main(int count, char** arguments) {
  uint64_t seed = 0;
  bool trace = false;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    if (name == "--trace") {
      trace = true;
      continue;
    }
    if (name == "--pinned") return RunPinned();
    if (i + 1 >= count) Refuse("unknown, or without its value: " + std::string(name));
    const std::string_view value = arguments[++i];
    if (name == "--seed") {
      seed = Number(value);
    } else if (name == "--with") {
      Plant(value);
    } else if (name == "--seeds") {
      return RunMany(RangeOf(value));
    } else if (name == "--survey") {
      return Survey(RangeOf(value));
    } else if (name == "--fresh") {
      return RunMany({FirstSchedule(), FirstSchedule() + Number(value) - 1});
    } else if (name == "--replay") {
      return Replay(Number(value));
    } else if (name == "--digest") {
      return Digest(RangeOf(value));
    } else if (name == "--planted") {
      return FindPlanted(Plant(value));
    } else {
      Refuse("unknown: " + std::string(name));
    }
  }
  return RunOne(seed, trace);
}

}  // namespace
}  // namespace muster::sim

int main(int count, char** arguments) {
  return muster::sim::Main(count, arguments);
}
