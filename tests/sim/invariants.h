// What must hold at every step: docs/architecture.md, "Invariants", has them by number. Most is judged by what is true of the
// simulated hosts, and not by what the gang believes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/gang/gang.h"
#include "daemon/lease/witnesses.h"
#include "tests/sim/store.h"

namespace muster::sim {

class Host;
class Simulation;
struct Supervisor;

class Invariants {
 public:
  explicit Invariants(Simulation& simulation) : sim_(simulation) {}

  // ---- what happens, as far as it is true whoever knows of it

  // Something ends, or is to end, a generation: an exit, a fence, a node's death. 0: whichever runs, and the next one.
  void Cause(uint64_t generation);
  // Slurm ends the job, or will.
  void JobEnds() { job_ends_ = true; }
  // Its members have been told so.
  void ToldCommitted(uint64_t generation, uint64_t step);
  // The coordinator of this term has been told so.
  void KnownCommitted(uint64_t term, uint64_t generation, uint64_t step) {
    known_[term].insert({step, generation});
  }
  // A member's shard is handed over.
  void Saved(uint64_t generation, uint64_t step, uint32_t rank);

  // ---- what is done

  // A program is about to run: no program of another generation, or of another one with this number, does; the record is
  // durable, if that was ordered; and it starts from the newest step that members have been told is committed.
  void MemberStarts(const Host& host, const Supervisor& started);
  // An order ends a member that runs.
  void MemberStopped(const Supervisor& stopped);
  // A coordinator orders the start of the gang's generation: where it can be seen, nothing of the one before is left.
  void Starts(const gang::Gang& gang, uint64_t term, bool durable, uint32_t coordinator);
  // It settles what a generation starts from that nobody has started before.
  void Chosen(uint64_t term, uint64_t generation, std::optional<uint64_t> from);
  // A coordinator ends a generation that could run on. The nodes that are free at that moment must make up the next generation.
  void StopsAsPlanned(const gang::Gang& gang, uint64_t term);
  // It has given the gang up just now, or wants its job requeued.
  void GivesUp(const gang::Gang& gang, uint64_t term);
  // It tells the job, and who looks at the history, why a generation has ended.
  void Tells(const gang::Gang& gang, uint64_t term, uint64_t generation, const std::string& what);
  // It will not start from this checkpoint again.
  void Rejected(const std::string& manifest);
  // An agent carries an order of this term out.
  void Obeys(Host& host, uint64_t term);
  // A coordinator has taken this term.
  // `promised`: it has taken over because its node found the one before dead. Else it is the one before, or was asked.
  void Coordinates(uint64_t term, bool promised);
  // A coordinator gives way to who has the record: that is another.
  void StepsDown(uint32_t node, std::optional<uint32_t> successor);
  // A coordinator of this term has changed the record.
  void Written(const Fence& before, const Fence& after, uint64_t by_term);
  // Another job's gang has taken the gang's name=KEY, whose record was this.
  void NameTaken(const GangRecord& record);
  // A checkpoint is: its generation's record is in the store, all members' shards are in it, each has been saved, and what the
  // generation started from is still listed.
  void Committed(const Store::Head& head, const Checkpoint& checkpoint);
  // A coordinator hears that a checkpoint is committed: the store answers, and its gang runs. Lost witnesses do not stay for long then.
  void GoesOn(const gang::Gang& gang, uint64_t term, const lease::WitnessSet& witnesses);
  // This node's members have been fenced, the coordinator on that host concludes.
  void Silent(uint32_t node, uint64_t term, const Host& coordinator);
  // Slurm is told that a node is down, by the coordinator of `term`; `newest`: that of the store's record when it asked whether it may.
  void SetDown(uint32_t node, uint64_t term, uint64_t newest);
  // Infrastructure costs no restarts.
  void Judged(const gang::Gang& gang);
  // A node has been told of the end: whoever orders it, it is carried out.
  void Ends();
  // A coordinator has waited long enough for the end's record: it tells the end without, and who is cut off cannot know.
  void NoRecordOfEnd() { unrecorded_ = true; }

  uint32_t user_faults = 0;  // that have happened

 private:
  struct Generation {
    uint64_t term = 0;
    std::vector<uint32_t> active;
    uint32_t world = 0;  // members that save
    bool caused = false;
  };
  [[nodiscard]] bool Superseded(uint64_t term) const { return sim_head().term > term; }
  [[nodiscard]] const Fence& sim_head() const;
  [[nodiscard]] bool Sound(uint64_t generation) const;
  [[nodiscard]] bool Well(const Host& host) const;
  // What runs there is left out: README.md.
  [[nodiscard]] bool Excused(const Host& host) const;
  // How many of such nodes make up a generation, as the gang's settings have it; 0: too few.
  [[nodiscard]] static size_t Room(const gang::Gang& gang, const std::function<bool(uint32_t node)>& usable);

  Simulation& sim_;
  bool over_ = false;
  bool unrecorded_ = false;
  bool job_ends_ = false;
  uint64_t seen_generation_ = 0;
  // The newest coordinator's term, and a lost node that is a witness; since when.
  std::map<std::pair<uint64_t, uint32_t>, Nanos> stale_;
  std::set<std::pair<uint64_t, uint64_t>> durable_;  // terms and generations
  std::map<uint64_t, Generation> generations_;
  std::map<uint64_t, uint64_t> told_;                                  // steps, and whose
  std::map<std::pair<uint64_t, uint64_t>, std::set<uint32_t>> saved_;  // by generation and step
  std::map<uint64_t, uint64_t> faults_told_;                           // generations, and in which term
  std::map<uint64_t, std::set<std::pair<uint64_t, uint64_t>>> known_;  // by term, steps and generations
  // Of these, what was rejected, dropped by retention, or committed anew.
  std::set<std::pair<uint64_t, uint64_t>> gone_;
  std::set<uint64_t> terms_;
  bool promised_ = false;  // the newest
};

}  // namespace muster::sim
