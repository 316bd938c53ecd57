#include "tests/sim/invariants.h"

#include <algorithm>
#include <utility>

#include "daemon/coordinator/record_of_gang.h"
#include "tests/sim/host.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

// After which nothing of a fault is left: links have ended, leases have, and musterd has come back or its supervisors have
// given it up.
constexpr Nanos kOver = 10'000 * kMs;
constexpr Nanos kReplaced = 2'500 * kMs;  // so long a lost node may stay a witness

}  // namespace

const Fence& Invariants::sim_head() const {
  return sim_.store.head().fence;
}

// ---- what happens

void Invariants::Cause(uint64_t generation) {
  if (generation != 0) {
    generations_[generation].caused = true;
    return;
  }
  generations_[seen_generation_].caused = true;
  generations_[seen_generation_ + 1].caused = true;
}

void Invariants::ToldCommitted(uint64_t generation, uint64_t step) {
  uint64_t& told = told_[step];
  told = std::max(told, generation);
}

void Invariants::Saved(uint64_t generation, uint64_t step, uint32_t rank) {
  saved_[{generation, step}].insert(rank);
}

void Invariants::Rejected(const std::string& manifest) {
  gone_.insert({std::stoull(manifest), std::stoull(manifest.substr(manifest.rfind('.') + 1))});
}

void Invariants::Ends() {
  const GangRecord& record = *sim_.store.head().record;
  over_ |= !unrecorded_ || sim_.job_over || Is(record, gang::State::kFinished) ||
           Is(record, gang::State::kRequeueing);
}

// ---- generations

void Invariants::Chosen(uint64_t term, uint64_t generation, std::optional<uint64_t> from) {
  const auto& known = known_[term];
  const auto newest =
      std::find_if(known.rbegin(), known.rend(), [&](const auto& one) { return !gone_.contains(one); });
  if (newest == known.rend() || (from && *from >= newest->first)) return;
  sim_.world.Fail(
      Invariant::kNewestStart,
      fmt::format("generation {} is to start from {}, and its coordinator knows that step {} is committed",
                  generation, from ? fmt::format("step {}", *from) : "the beginning", newest->first));
}

void Invariants::MemberStarts(const Host& host, const Supervisor& started) {
  if (over_)
    sim_.world.Fail(
        Invariant::kNothingAfterEnd,
        fmt::format("generation {} starts on n{} after the gang's end", started.generation, host.index()));
  if (durable_.contains({started.term, started.generation}) && sim_head().generation < started.generation) {
    sim_.world.Fail(Invariant::kRecordFirst,
                    fmt::format("generation {} starts on n{} before its record is durable",
                                started.generation, host.index()));
  }
  for (const auto& [step, generation] : told_) {
    if (gone_.contains({step, generation}) || generation >= started.generation) continue;
    if (started.from && *started.from >= step) continue;
    sim_.world.Fail(
        Invariant::kNewestStart,
        fmt::format("generation {} starts from {}, and members have been told that {} is committed",
                    started.generation,
                    started.from ? fmt::format("step {}", *started.from) : "the beginning", step));
  }
  for (const auto& other : sim_.hosts) {
    if (Excused(*other)) continue;
    for (const Supervisor& s : other->supervisors) {
      if (!s.executing || &s == &started) continue;
      if (s.generation == started.generation && s.content == started.content) continue;
      sim_.world.Fail(
          Invariant::kOneGeneration,
          fmt::format("generation {} (term {}) starts on n{} while generation {} (term {}) runs on n{}",
                      started.generation, started.term, host.index(), s.generation, s.term, other->index()));
    }
  }
}

// All members of the generation run, and nothing that ends one has happened.
bool Invariants::Sound(uint64_t generation) const {
  const auto found = generations_.find(generation);
  if (found == generations_.end() || found->second.caused || found->second.active.empty()) return false;
  // With the batch host the gang ends, as soon as Slurm has said which that is.
  if (sim_.hosts[sim_.options.job.batch_node.value_or(0)]->hurt_at() >= 0) return false;
  return std::all_of(found->second.active.begin(), found->second.active.end(), [&](uint32_t node) {
    const auto& supervisors = sim_.hosts[node]->supervisors;
    return std::all_of(supervisors.begin(), supervisors.end(), [&](const Supervisor& s) {
      return s.alive && s.executing && s.generation == generation;
    });
  });
}

void Invariants::MemberStopped(const Supervisor& stopped) {
  if (job_ends_ || sim_.job_over || over_ || stopped.generation != seen_generation_) return;
  if (!Sound(stopped.generation)) return;
  // A gang that has shrunk may grow.
  if (sim_.options.gang.grow && generations_[stopped.generation].active.size() < sim_.options.gang.node_count)
    return;
  sim_.world.Fail(Invariant::kRestartHasCause,
                  fmt::format("generation {} runs everywhere, nothing has happened to it, and it is stopped",
                              stopped.generation));
}

void Invariants::Starts(const gang::Gang& gang, uint64_t term, bool durable, uint32_t coordinator) {
  if (durable) durable_.emplace(term, gang.generation());
  Generation& generation = generations_[gang.generation()];
  // Who takes over goes on with the generation, as it was started.
  if (term >= generation.term && generation.active != gang.active()) {
    generation.active = gang.active();
    generation.term = term;
    generation.world = gang.WorldSize();
  }
  // Nobody carries out what one orders that another has taken the record from. A newer term may be this coordinator's own, which
  // it has not heard of yet: the generation is looked at now, and not when the start is said again in that term.
  const bool superseded =
      Superseded(term) && sim_.NodeOf(sim_.store.head().record->coordinator) != coordinator;
  if (gang.generation() <= seen_generation_ || superseded) return;
  seen_generation_ = gang.generation();
  for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
    if (!gang.nodes()[node].present || gang.nodes()[node].lost) continue;
    for (const Supervisor& s : sim_.hosts[node]->supervisors) {
      const bool left_out = s.exiting && !gang.IsActive(node);
      if (s.processes && !s.unkillable && !left_out && s.generation < gang.generation()) {
        sim_.world.Fail(Invariant::kOneGeneration,
                        fmt::format("generation {} is started, and n{} has processes of {}",
                                    gang.generation(), node, s.generation));
      }
    }
  }
}

size_t Invariants::Room(const gang::Gang& gang, const std::function<bool(uint32_t node)>& usable) {
  const gang::Settings& settings = gang.settings();
  size_t room = 0;
  for (uint32_t role = 0; role < settings.roles.size(); ++role) {
    uint32_t all = 0;
    uint32_t count = 0;
    for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
      if ((settings.node_roles.empty() ? 0 : settings.node_roles[node]) != role) continue;
      ++all;
      count += usable(node) ? 1 : 0;
    }
    const uint32_t full = all > settings.roles[role].spares ? all - settings.roles[role].spares : all;
    const uint32_t least = settings.roles[role].min_nodes;
    if (count < (least > 0 ? std::min(least, full) : full)) return 0;
    room += std::min(count, full);
  }
  return room;
}

void Invariants::StopsAsPlanned(const gang::Gang& gang, uint64_t term) {
  if (job_ends_ || sim_.job_over || Superseded(term)) return;
  const auto usable = [&](uint32_t node) {
    const gang::Gang::Node& known = gang.nodes()[node];
    const auto& supervisors = sim_.hosts[node]->supervisors;
    const bool idle = std::none_of(supervisors.begin(), supervisors.end(),
                                   [](const Supervisor& s) { return s.processes && !s.unkillable; });
    return known.present && !known.lost && known.excluded.empty() && (gang.IsActive(node) || idle);
  };
  const size_t room = Room(gang, usable);
  const bool grows = std::all_of(gang.active().begin(), gang.active().end(), usable);
  if (room > (grows ? gang.active().size() : 0)) return;
  sim_.world.Fail(Invariant::kPlannedFits,
                  fmt::format("generation {} is stopped as planned, and there is room for {} nodes now",
                              gang.generation(), room));
}

void Invariants::GivesUp(const gang::Gang& gang, uint64_t term) {
  if (job_ends_ || sim_.job_over || Superseded(term)) return;
  if (user_faults > gang.settings().restarts || gang.BatchHostLost()) return;
  if (gang.Remember().restarts_without_progress > gang::kMaxRestartsWithoutProgress) return;
  // A task that was ended from outside was ended on purpose.
  const auto ended = [](const Supervisor& s) { return !s.alive; };
  for (const auto& host : sim_.hosts) {
    if (!host->crashed() && std::any_of(host->supervisors.begin(), host->supervisors.end(), ended)) return;
  }
  const bool hurt = std::any_of(sim_.hosts.begin(), sim_.hosts.end(),
                                [](const auto& host) { return host->hurt_at() >= 0; });
  // Of a step that has not been launched whole srun ends the rest.
  if (gang.generation() == 0 && hurt) return;
  // Nodes that are here, with nothing wrong with them.
  const auto usable = [&](uint32_t node) {
    const Host& host = *sim_.hosts[node];
    const gang::Gang::Node& known = gang.nodes()[node];
    const bool whole = std::all_of(host.supervisors.begin(), host.supervisors.end(),
                                   [](const Supervisor& s) { return s.alive && !s.unkillable; });
    return !host.crashed() && whole && known.present && known.excluded.empty();
  };
  if (Room(gang, usable) == 0) return;
  sim_.world.Fail(Invariant::kNotGivenUp,
                  fmt::format("generation {} is the last one, and there are nodes and restarts for another",
                              gang.generation()));
}

void Invariants::Tells(const gang::Gang& gang, uint64_t term, uint64_t generation, const std::string& what) {
  if (Superseded(term)) return;
  const auto [found, first] = faults_told_.emplace(generation, term);
  const bool again = !first && found->second == term;
  // One that takes over finds the fault again, unless the record says what came of it.
  const bool known =
      !first && sim_head().generation > generation && gang.generation() > sim_head().generation;
  found->second = term;
  if (again || known)
    sim_.world.Fail(Invariant::kToldOnce,
                    fmt::format("why generation {} has ended is told twice: {}", generation, what));
}

// ---- terms

void Invariants::Obeys(Host& host, uint64_t term) {
  if (term < host.obeyed_term) {
    sim_.world.Fail(Invariant::kHighestTerm,
                    fmt::format("n{} obeys term {} after {}", host.index(), term, host.obeyed_term));
  }
  host.obeyed_term = std::max(host.obeyed_term, term);
}

void Invariants::Coordinates(uint64_t term, bool promised) {
  promised_ = promised;
  if (!terms_.insert(term).second)
    sim_.world.Fail(Invariant::kOneCoordinator, fmt::format("two coordinators have term {}", term));
}

void Invariants::StepsDown(uint32_t node, std::optional<uint32_t> successor) {
  if (successor == node)
    sim_.world.Fail(Invariant::kOwnRecordKept,
                    fmt::format("n{} steps down, and the record is its own", node));
}

void Invariants::Written(const Fence& before, const Fence& after, uint64_t by_term) {
  if (before.term <= by_term && after.term >= before.term && after.generation >= before.generation) return;
  sim_.world.Fail(Invariant::kFenceStands,
                  fmt::format("the record ({}, {}) is overwritten with ({}, {}) in term {}", before.term,
                              before.generation, after.term, after.generation, by_term));
}

// ---- checkpoints

void Invariants::GoesOn(const gang::Gang& gang, uint64_t term, const lease::WitnessSet& witnesses) {
  if (Superseded(term)) return;
  decltype(stale_) stale;
  for (const lease::NodeIndex node : witnesses) {
    if (!gang.nodes()[node].lost || gang.state() != gang::State::kRunning) continue;
    const std::pair<uint64_t, uint32_t> here(term, node);
    const auto before = stale_.find(here);
    stale[here] = before == stale_.end() ? sim_.world.now() : before->second;
    if (sim_.world.now() - stale[here] > kReplaced)
      sim_.world.Fail(Invariant::kWitnessesLive, fmt::format("n{} is lost, and still a witness", node));
  }
  stale_ = std::move(stale);
}

void Invariants::NameTaken(const GangRecord& record) {
  const bool back = record.terminating && sim_.requeued;
  if ((Is(record, gang::State::kFinished) && !back) || (sim_.Over() && !sim_.requeued)) return;
  sim_.world.Fail(Invariant::kNameKept, "the gang's name is taken while its job is there, or comes back");
}

void Invariants::Committed(const Store::Head& head, const Checkpoint& checkpoint) {
  const auto look = [&](const std::pair<uint64_t, uint64_t>& one) {
    const auto listed = head.checkpoints.find(one.first);
    if (listed == head.checkpoints.end() || listed->second.generation != one.second) gone_.insert(one);
  };
  for (const auto& one : told_) look(one);
  for (const auto& [term, known] : known_) std::for_each(known.begin(), known.end(), look);
  if (head.fence.generation != checkpoint.generation) {
    sim_.world.Fail(Invariant::kWholeCommit,
                    fmt::format("step {} of generation {} is committed under the record of generation {}",
                                checkpoint.step, checkpoint.generation, head.fence.generation));
  }
  const auto generation = generations_.find(checkpoint.generation);
  if (generation != generations_.end() && generation->second.world != checkpoint.shards.size()) {
    sim_.world.Fail(Invariant::kWholeCommit,
                    fmt::format("step {} of generation {} is committed with {} shards of {}", checkpoint.step,
                                checkpoint.generation, checkpoint.shards.size(), generation->second.world));
  }
  const std::set<uint32_t>& saved = saved_[{checkpoint.generation, checkpoint.step}];
  if (!std::includes(saved.begin(), saved.end(), checkpoint.shards.begin(), checkpoint.shards.end())) {
    sim_.world.Fail(Invariant::kWholeCommit,
                    fmt::format("step {} of generation {} is committed with a shard that nobody has saved",
                                checkpoint.step, checkpoint.generation));
  }
  for (const auto& host : sim_.hosts) {
    for (const Supervisor& s : host->supervisors) {
      if (!s.executing || s.generation != checkpoint.generation || !s.from) continue;
      if (head.checkpoints.contains(*s.from) || sim_.store.IsBad(*s.from)) continue;
      sim_.world.Fail(Invariant::kStartKept,
                      fmt::format("generation {} runs on n{}, and step {} that it started from is removed",
                                  s.generation, host->index(), *s.from));
    }
  }
}

// ---- nodes

// No fault has touched it for a while.
bool Invariants::Well(const Host& host) const {
  return !host.crashed() && !host.Frozen() &&
         (host.hurt_at() < 0 || sim_.world.now() - host.hurt_at() > kOver);
}

// A machine that stood still does not know yet what time it is; what it writes is refused.
bool Invariants::Excused(const Host& host) const {
  return host.Frozen() || host.JustWoken() || host.Hidden() || (promised_ && host.Unled());
}

void Invariants::Silent(uint32_t node, uint64_t term, const Host& coordinator) {
  sim_.world.Log("n{} is silent", node);
  // One that another has taken the record from can start nothing by what it concludes.
  if (Superseded(term) && sim_.NodeOf(sim_.store.head().record->coordinator) != coordinator.index()) return;
  Cause(seen_generation_);
  const Host& host = *sim_.hosts[node];
  if (!over_ && Well(host) && Well(coordinator))
    sim_.world.Fail(Invariant::kHealthyNode,
                    fmt::format("n{} is well, and is called silent in term {}", node, term));
  if (Excused(host)) return;
  for (const Supervisor& s : host.supervisors) {
    if (s.executing && s.term <= term) {
      sim_.world.Fail(Invariant::kSilentIsFenced,
                      fmt::format("n{} is called silent in term {}, and generation {} runs there", node, term,
                                  s.generation));
    }
  }
}

void Invariants::SetDown(uint32_t node, uint64_t term, uint64_t newest) {
  const Host& host = *sim_.hosts[node];
  sim_.world.Log("Slurm is told that n{} is DOWN", node);
  if (newest > term) {
    sim_.world.Fail(Invariant::kHealthyNode,
                    fmt::format("n{} is set DOWN in term {}, and term {} has begun", node, term, newest));
  }
  if (Excused(host)) return;
  for (const Supervisor& s : host.supervisors) {
    if (!s.executing || s.generation < seen_generation_) continue;
    sim_.world.Fail(Invariant::kHealthyNode,
                    fmt::format("n{} is set DOWN, and generation {} runs there", node, s.generation));
  }
}

void Invariants::Judged(const gang::Gang& gang) {
  if (gang.user_faults() > user_faults) {
    sim_.world.Fail(Invariant::kOwnFaults,
                    fmt::format("{} faults are counted against `restarts`, and {} were the program's",
                                gang.user_faults(), user_faults));
  }
}

}  // namespace muster::sim
