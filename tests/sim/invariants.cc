#include "tests/sim/invariants.h"

#include <algorithm>

#include "tests/sim/host.h"
#include "tests/sim/simulation.h"

namespace muster::sim {

void Invariants::MemberStarts(const Host& host, const Supervisor& started) {
  if (over_)
    sim_.world.Fail(
        fmt::format("generation {} starts on n{} after the gang's end", started.generation, host.index()));
  if (durable_.contains({started.term, started.generation}) &&
      sim_.store.head().fence.generation < started.generation) {
    sim_.world.Fail(fmt::format("generation {} starts on n{} before its record is durable",
                                started.generation, host.index()));
  }
  for (const auto& other : sim_.hosts) {
    // A machine that stood still does not know yet what time it is; what it writes is refused.
    if (other->Frozen() || other->JustWoken() || other->Hidden()) continue;
    for (const Supervisor& s : other->supervisors) {
      if (!s.executing || &s == &started) continue;
      if (s.generation == started.generation && s.content == started.content) continue;
      sim_.world.Fail(
          fmt::format("generation {} (term {}) starts on n{} while generation {} (term {}) runs on n{}",
                      started.generation, started.term, host.index(), s.generation, s.term, other->index()));
    }
  }
}

void Invariants::Starts(const gang::Gang& gang, uint64_t term, bool durable) {
  if (durable) durable_.emplace(term, gang.generation());
  worlds_[gang.generation()] = gang.WorldSize();
  // Nobody carries out what one orders that another has taken the record from.
  if (gang.generation() <= seen_generation_ || sim_.store.head().fence.term > term) return;
  seen_generation_ = gang.generation();
  for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
    if (!gang.nodes()[node].present || gang.nodes()[node].lost) continue;
    for (const Supervisor& s : sim_.hosts[node]->supervisors) {
      if (s.processes && !s.unkillable && s.generation < gang.generation()) {
        sim_.world.Fail(fmt::format("generation {} is started, and n{} has processes of {}",
                                    gang.generation(), node, s.generation));
      }
    }
  }
}

void Invariants::Obeys(Host& host, uint64_t term) {
  if (term < host.obeyed_term) {
    sim_.world.Fail(fmt::format("n{} obeys term {} after {}", host.index(), term, host.obeyed_term));
  }
  host.obeyed_term = std::max(host.obeyed_term, term);
}

void Invariants::Coordinates(uint64_t term) {
  if (!terms_.insert(term).second) sim_.world.Fail(fmt::format("two coordinators have term {}", term));
}

void Invariants::StepsDown(uint32_t node, std::optional<uint32_t> successor) {
  if (successor == node) sim_.world.Fail(fmt::format("n{} steps down, and the record is its own", node));
}

void Invariants::Committed(const Store::Head& head, const Checkpoint& checkpoint) {
  if (head.fence.generation != checkpoint.generation) {
    sim_.world.Fail(fmt::format("step {} of generation {} is committed under the record of generation {}",
                                checkpoint.step, checkpoint.generation, head.fence.generation));
  }
  if (const auto world = worlds_.find(checkpoint.generation);
      world != worlds_.end() && world->second != checkpoint.shards) {
    sim_.world.Fail(fmt::format("step {} of generation {} is committed with {} shards of {}", checkpoint.step,
                                checkpoint.generation, checkpoint.shards, world->second));
  }
  for (const auto& host : sim_.hosts) {
    for (const Supervisor& s : host->supervisors) {
      if (!s.executing || s.generation != checkpoint.generation || !s.from) continue;
      if (head.checkpoints.contains(*s.from) || sim_.store.IsBad(*s.from)) continue;
      sim_.world.Fail(fmt::format("generation {} runs on n{}, and step {} that it started from is removed",
                                  s.generation, host->index(), *s.from));
    }
  }
}

void Invariants::Silent(uint32_t node, uint64_t term) {
  sim_.world.Log("n{} is silent", node);
  // One that another has taken the record from can start nothing by what it concludes.
  if (sim_.store.head().fence.term > term) return;
  const Host& host = *sim_.hosts[node];
  if (host.Frozen() || host.JustWoken() || host.Hidden()) return;
  for (const Supervisor& s : host.supervisors) {
    if (s.executing && s.term <= term) {
      sim_.world.Fail(fmt::format("n{} is called silent in term {}, and generation {} runs there", node, term,
                                  s.generation));
    }
  }
}

void Invariants::Judged(const gang::Gang& gang) {
  if (gang.user_faults() > user_faults) {
    sim_.world.Fail(fmt::format("{} faults are counted against `restarts`, and {} were the program's",
                                gang.user_faults(), user_faults));
  }
}

}  // namespace muster::sim
