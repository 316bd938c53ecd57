// One run: a gang on eight to ten hosts, a schedule of faults, and then peace, in which it must come to its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/gang/gang.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/lease/types.h"
#include "tests/sim/coverage.h"
#include "tests/sim/host.h"
#include "tests/sim/invariants.h"
#include "tests/sim/network.h"
#include "tests/sim/rival.h"
#include "tests/sim/store.h"
#include "tests/sim/world.h"

namespace muster::sim {

class Coordinator;

struct Options {
  lease::Times times;
  gang::Settings gang;
  gang::JobFacts job;
  GangJob gang_job;
  std::vector<uint32_t> candidates;
  size_t tasks_per_host = 1;
  Nanos join_timeout = 4'000 * kMs;
  Nanos exiting = 150 * kMs;  // after SIGKILL, until a supervisor says that what is left only exits
  Nanos sweep = 800 * kMs;    // after which what SIGKILL has not removed is called unkillable
};

class Simulation {
 public:
  Simulation(uint64_t seed, bool tracing, Coverage& coverage);
  ~Simulation();

  // "" or the first invariant that was broken.
  std::string Run();

  // ---- Slurm
  void Requeue(std::function<void(const std::string& why)> failed);
  void EndJob();
  // ---- a link is dialled
  void Dial(const std::shared_ptr<Link>& link);
  // The coordinator with the highest term that believes that it leads; null: none.
  [[nodiscard]] Coordinator* Leader() const;
  // The host of this name.
  [[nodiscard]] uint32_t NodeOf(const std::string& name) const;

  World world;
  Options options;
  Network network;
  Store store;
  Invariants invariants;
  Coverage& coverage;
  std::vector<std::unique_ptr<Host>> hosts;
  bool calm = false;      // no faults any more: programs come to their end
  bool job_over = false;  // Slurm has ended every task
  bool requeued = false;  // and has the job in its queue again

  // No task is left.
  [[nodiscard]] bool Over() const;

 private:
  void Join();
  void Heal();

  Rival rival_;
};

}  // namespace muster::sim
