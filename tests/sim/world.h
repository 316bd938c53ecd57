// Simulated time: an event queue, one source of randomness, the trace. One seed is one run, the same on every machine.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/broken.h"

namespace muster::sim {

using Nanos = int64_t;
inline constexpr Nanos kMs = 1'000'000;

class World {
 public:
  using Task = std::function<void()>;
  World(uint64_t seed, bool tracing) : random_(seed), tracing_(tracing) {}

  void After(Nanos delay, Task task);
  // The next event, unless it is later than `until` or an invariant has been broken.
  bool Step(Nanos until);

  [[nodiscard]] Nanos now() const { return now_; }
  [[nodiscard]] uint64_t events() const { return events_; }
  // Not the standard's distributions: they differ between libraries.
  int64_t Pick(int64_t low, int64_t high);
  bool Chance(double part) { return static_cast<double>(random_() >> 11) * 0x1p-53 < part; }

  template <typename... Args>
  void Log(fmt::format_string<Args...> format, Args&&... args) {
    if (tracing_) Write(fmt::format(format, std::forward<Args>(args)...));
  }
  // The first counts.
  void Fail(Invariant broken, const std::string& what);
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] Invariant broken() const { return broken_; }  // when there is a failure
  [[nodiscard]] const std::string& trace() const { return trace_; }

 private:
  struct Entry {
    Nanos at;
    uint64_t order;
    uint32_t slot;
    bool operator<(const Entry& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  void Write(const std::string& line);

  std::mt19937_64 random_;
  bool tracing_;
  Nanos now_ = 0;
  uint64_t order_ = 0;
  uint64_t events_ = 0;
  std::vector<Entry> heap_;
  std::vector<Task> tasks_;
  std::vector<uint32_t> free_;
  std::string trace_;
  std::string failure_;
  Invariant broken_ = Invariant::kComesToEnd;
};

}  // namespace muster::sim
