// The bugs that can be planted (base/planted.h), and which invariant finds each. CMakeLists.txt makes a test of each row.
#pragma once

#include <array>
#include <string_view>

#include "tests/sim/broken.h"

namespace muster::sim {

struct PlantedBug {
  std::string_view name;
  Invariant found_by;
};

// clang-format off
inline constexpr std::array kPlantedBugs = {
    // A node's members run on when its lease is over.
    PlantedBug{"no_fencing", Invariant::kSilentIsFenced},
    // A musterd that has ended is counted as one that is silent: its members run on for `reconnect`.
    PlantedBug{"closed_not_counted", Invariant::kSilentIsFenced},
    // Agents obey whoever speaks, in whatever term.
    PlantedBug{"stale_term", Invariant::kHighestTerm},
    // Who takes over does so in the term that there was.
    PlantedBug{"same_term", Invariant::kOneCoordinator},
    // An agent whose coordinator is dead before it has a lease dials that one for ever.
    PlantedBug{"never_rotates", Invariant::kComesToEnd},
    // A part of the orders to stop is never sent.
    PlantedBug{"lost_stop", Invariant::kComesToEnd},
    // Nodes are taken for stopped when that has been ordered.
    PlantedBug{"early_start", Invariant::kOneGeneration},
    // A node says that nothing runs there any more when its members have been ordered to stop.
    PlantedBug{"stopping_is_stopped", Invariant::kOneGeneration},
    // A member that its supervisor has stopped by itself is not told as one that has ended.
    PlantedBug{"own_stop_untold", Invariant::kComesToEnd},
    // A node whose processes have been killed and have not gone yet is used.
    PlantedBug{"exiting_used", Invariant::kOneGeneration},
    // A restart does not wait for such a node, though no other node can take its place.
    PlantedBug{"exiting_not_awaited", Invariant::kNotGivenUp},
    // A planned stop counts a node as free though processes of an earlier generation have not gone there.
    PlantedBug{"exiting_counted", Invariant::kPlannedFits},
    // A start behind its record does not wait for it: a rule of daemon/coordinator.
    PlantedBug{"start_before_record", Invariant::kRecordFirst},
    // A generation that starts anew in another term starts from another checkpoint.
    PlantedBug{"new_start_each_term", Invariant::kOneGeneration},
    // Each generation starts from what the first one of this coordinator has started from.
    PlantedBug{"first_start_kept", Invariant::kNewestStart},
    // What a generation started from is removed while it runs (aae4147).
    PlantedBug{"start_not_kept", Invariant::kStartKept},
    // A step is committed again although it is being committed.
    PlantedBug{"double_commit", Invariant::kCommittedOnce},
    // A step is committed without the last shard.
    PlantedBug{"commit_without_one", Invariant::kWholeCommit},
    // What a generation has saved that the record does not know yet is committed under the record before.
    PlantedBug{"commit_under_old_record", Invariant::kWholeCommit},
    // A coordinator that takes over does not count the members of a dead node (d3536da).
    PlantedBug{"dead_not_counted", Invariant::kWholeCommit},
    // A commit that the coordinator's own new fence has refused makes it step down: the product did so once.
    PlantedBug{"own_fence_deposes", Invariant::kOwnRecordKept},
    // So does its own new term, which nodes have read in the record (59ea055).
    PlantedBug{"own_term_deposes", Invariant::kOwnRecordKept},
    // The store is asked for a new term once, and a lost answer counts as a refusal: the product did so once.
    PlantedBug{"raise_asked_once", Invariant::kOwnRecordKept},
    // A record is written under the old fence while the term is being raised.
    PlantedBug{"written_while_raising", Invariant::kOwnRecordKept},
    // The record is overwritten without a look at whose it is.
    PlantedBug{"written_unseen", Invariant::kFenceStands},
    // A lost node that comes back with something of an older generation has all stop (d340126).
    PlantedBug{"older_stops_all", Invariant::kRestartHasCause},
    // A node that says late that it has stopped something older ends the generation that runs.
    PlantedBug{"late_stop_restarts", Invariant::kRestartHasCause},
    // A gang is given up before the record says so, by who may have lost it (f925194).
    PlantedBug{"given_up_unrecorded", Invariant::kNothingAfterEnd},
    // One restart less than the limit ends the gang.
    PlantedBug{"one_restart_less", Invariant::kNotGivenUp},
    // A coordinator that takes over charges the fault once more that it finds again.
    PlantedBug{"fault_charged_again", Invariant::kOwnFaults},
    // What no program has done is counted against `restarts`.
    PlantedBug{"all_faults_charged", Invariant::kOwnFaults},
    // A fault is told when it is seen, and when all have stopped.
    PlantedBug{"told_when_seen", Invariant::kToldOnce},
    // A coordinator that has a successor tells Slurm who is down.
    PlantedBug{"down_by_former", Invariant::kHealthyNode},
    // A node that is silent while the job is being requeued keeps its link.
    PlantedBug{"silent_keeps_link", Invariant::kComesToEnd},
    // A lost witness is not replaced while the gang runs on.
    PlantedBug{"lost_witness_kept", Invariant::kWitnessesLive},
    // A record of a gang that runs is taken for one of a gang that joins.
    PlantedBug{"running_forgotten", Invariant::kNotGivenUp},
    // Who takes over does not know which nodes make up the generation.
    PlantedBug{"active_forgotten", Invariant::kRestartHasCause},
    // The record of a new term names the coordinator of the one before.
    PlantedBug{"unnamed", Invariant::kOwnRecordKept},
    // What a coordinator before has had stopped the next one cannot start.
    PlantedBug{"old_stops_bind", Invariant::kComesToEnd},
    // A second job of a name takes the record over while the first trains: the product did so once.
    PlantedBug{"name_taken_from_the_living", Invariant::kNameKept},
    // A job of which Slurm says nothing counts as one that has ended.
    PlantedBug{"name_taken_in_silence", Invariant::kNameKept},
    // A job that has been requeued gives its name up.
    PlantedBug{"name_taken_from_requeued", Invariant::kNameKept},
};
// clang-format on

}  // namespace muster::sim
