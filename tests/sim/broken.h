// The invariants, by number and by name: docs/architecture.md, "Invariants". A planted bug says which one finds it.
#pragma once

#include <array>
#include <cstddef>

namespace muster::sim {

enum class Invariant {
  kOneGeneration,
  kRecordFirst,
  kHighestTerm,
  kOneCoordinator,
  kOwnRecordKept,
  kWholeCommit,
  kCommittedOnce,
  kStartKept,
  kNewestStart,
  kSilentIsFenced,
  kHealthyNode,
  kRestartHasCause,
  kNotGivenUp,
  kOwnFaults,
  kToldOnce,
  kFenceStands,
  kNothingAfterEnd,
  kComesToEnd,
  kPlannedFits,
  kWitnessesLive,
  kNameKept,
};
inline constexpr std::array kInvariantNames = {
    "one_generation", "record_first",      "highest_term", "one_coordinator", "own_record_kept",
    "whole_commit",   "committed_once",    "start_kept",   "newest_start",    "silent_is_fenced",
    "healthy_node",   "restart_has_cause", "not_given_up", "own_faults",      "told_once",
    "fence_stands",   "nothing_after_end", "comes_to_end", "planned_fits",    "witnesses_live",
    "name_kept"};

inline const char* Name(Invariant invariant) {
  return kInvariantNames.at(static_cast<size_t>(invariant));
}

}  // namespace muster::sim
