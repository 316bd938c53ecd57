// What must hold at every step (DESIGN: "One generation runs", "Leadership is a compare-and-swap", ...). The store checks
// commits itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "daemon/gang/gang.h"
#include "tests/sim/store.h"

namespace muster::sim {

class Host;
class Simulation;
struct Supervisor;

class Invariants {
 public:
  explicit Invariants(Simulation& simulation) : sim_(simulation) {}

  // A program is about to run: no program of another generation, or of another one with this number, does; and the
  // record is durable, if that was ordered.
  void MemberStarts(const Host& host, const Supervisor& started);
  // A coordinator orders the start of the gang's generation: where it can be seen, nothing of the one before is left.
  void Starts(const gang::Gang& gang, uint64_t term, bool durable);
  // An agent carries an order of this term out.
  void Obeys(Host& host, uint64_t term);
  // A coordinator has taken this term.
  void Coordinates(uint64_t term);
  // A coordinator gives way to who has the record: that is another.
  void StepsDown(uint32_t node, std::optional<uint32_t> successor);
  // A checkpoint is: its generation's record is in the store, all members' shards are in it, and what the generation started from
  // is still listed.
  void Committed(const Store::Head& head, const Checkpoint& checkpoint);
  // This node's members have been fenced, a coordinator concludes.
  void Silent(uint32_t node, uint64_t term);
  // Infrastructure costs no restarts.
  void Judged(const gang::Gang& gang);
  // A node has been told of the end: whoever orders it, it is carried out.
  void Ends() { over_ = true; }

  uint32_t user_faults = 0;  // that have happened

 private:
  Simulation& sim_;
  bool over_ = false;
  uint64_t seen_generation_ = 0;
  std::set<std::pair<uint64_t, uint64_t>> durable_;  // terms and generations
  std::map<uint64_t, uint32_t> worlds_;              // of generations: members that save
  std::set<uint64_t> terms_;
};

}  // namespace muster::sim
