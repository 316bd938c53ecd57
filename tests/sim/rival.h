// Jobs of the same user, on hosts of their own, that want the gang's name=KEY while the gang is there: one after another, each with the
// product's rules. They have a source of randomness of their own, and what they would take from the store is judged and not taken. So
// the schedule of a seed is the same with and without them.
#pragma once

#include <cstdint>
#include <optional>
#include <random>

#include "base/result.h"
#include "daemon/coordinator/record.h"
#include "daemon/coordinator/take_over.h"
#include "daemon/slurm/slurm.h"
#include "tests/sim/world.h"

namespace muster::sim {

class Simulation;

class Rival {
 public:
  Rival(Simulation& simulation, uint64_t seed) : sim_(simulation), random_(~seed) {}
  void Begin() {
    Later(0, 4'000, [this] { Come(); });
  }

 private:
  void Come();  // the next job
  void Look();
  void Ask(const GangRecord& holder);
  void Take(const TakeOver::Swap& swap);
  // What slurmctld says of the gang's job.
  [[nodiscard]] Result<SlurmJob> Slurm();
  void Later(int64_t least_ms, int64_t most_ms, World::Task task);
  int64_t Pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  Simulation& sim_;
  std::mt19937_64 random_;
  uint32_t job_id_ = 1;
  std::optional<TakeOver> rules_;
};

}  // namespace muster::sim
