// Finds the members that are slower than the others of their role. Pure; one for each gang, at its coordinator.
//
// Two measures, because members that wait for each other in every step all take the same time for it:
//  - pace: a rank's own time for a step, smoothed. It tells where ranks step independently.
//  - lateness: how long after the others' median a rank enters the same step. It tells where they wait for each
//    other, when the program calls progress() before it waits (see docs/hangs.md), and steps take longer than the
//    time between reports.
// A rank is marked when a measure is both far outside of the others (median and MAD) and at least `share` of a step
// beyond them, for `steps` of its steps in a row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/hang/detector.h"
#include "daemon/hang/progress_report.h"

namespace muster::hang {

struct StragglerSettings {
  double share = 0.2;     // of a step's median time
  double deviations = 5;  // of the ranks' MAD
  uint32_t steps = 10;
};

struct Pace {
  uint32_t rank = 0;
  std::optional<uint64_t> step;
  int64_t step_ns = 0;  // 0: not known yet
  int64_t late_ns = 0;  // negative: earlier than the others
  bool straggler = false;
  std::string why;  // "steps take 2.4 s, the others' 1.9 s"; empty for those that are not
};

// Not thread-safe. Times as in Detector.
class Stragglers {
 public:
  explicit Stragglers(StragglerSettings settings = {});

  void GenerationStarted(const std::vector<Member>& members);
  void MemberExited(uint32_t rank);
  void Report(const MemberReport& report, int64_t now_ns);
  // Judges what was reported since; every few seconds is enough. True when a mark has changed.
  bool Tick();

  [[nodiscard]] std::vector<Pace> Paces() const;  // by rank

 private:
  struct Rank {
    std::string role;
    std::optional<uint64_t> step;
    int64_t at = 0;
    double pace = 0;                      // ns; 0: unknown
    std::map<uint64_t, int64_t> entered;  // when, by step: the newest few
    std::optional<double> late;
    uint64_t late_step = 0;  // that was measured last
    uint64_t judged_step = 0;
    uint64_t slow_steps = 0;
    uint64_t late_steps = 0;
    std::string why;
  };
  bool Judge(const std::vector<Rank*>& ranks);
  void MeasureLateness(const std::vector<Rank*>& ranks) const;

  StragglerSettings settings_;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace muster::hang
