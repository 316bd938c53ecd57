// A gang's record: what the next coordinator, the muster command and the history know of it. JSON in the
// store; docs/formats.md has it field by field.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/hang/seen_starts.h"

namespace muster {

struct HistoryEvent {
  int64_t time_ns = 0;  // CLOCK_REALTIME
  uint64_t generation = 0;
  std::string kind;
  std::string text;
};

struct GangRecord {
  std::string gang;
  std::string key;
  uint32_t job_id = 0;
  uint32_t step_id = 0;
  uint32_t restart_count = 0;
  uint64_t submission = 0;  // both as in GangJob
  int64_t launched_ns = 0;
  uint32_t uid = 0;
  std::string state;  // gang::ToString
  bool succeeded = false;
  uint64_t term = 0;
  uint64_t generation = 0;
  std::string coordinator;
  uint32_t task_count = 0;
  std::vector<std::string> nodes;
  // Indexes of `nodes`: those that make up the generation, in the order of their ranks; those that are lost, that live
  // but whose tasks have all ended, that had no musterd when this was written, that are not to be used, and why, and that
  // are not to be used from the next checkpoint on. For readers: those with processes that SIGKILL has ended and that have not gone.
  std::vector<uint32_t> active;
  std::vector<uint32_t> before;  // gang::Memory::before
  uint64_t placed = 0;           // gang::Memory::placed
  std::vector<uint32_t> lost;
  std::vector<uint32_t> ended;
  std::vector<uint32_t> away;
  std::vector<std::pair<uint32_t, std::string>> excluded;
  std::vector<std::pair<uint32_t, std::string>> draining;
  std::vector<uint32_t> exiting;
  std::vector<uint32_t> task_counts;  // by node; 0: it has not joined yet
  std::vector<std::string> roles;     // by node; empty: the gang has one role
  // Nodes whose word counts about the coordinator's life (daemon/lease): of this term, and of earlier ones that some
  // node may still follow.
  std::vector<uint32_t> witnesses;
  std::vector<std::vector<uint32_t>> former;
  bool succeeding = false;   // who was waited for has exited with 0: the others are being stopped
  bool terminating = false;  // Slurm ends the job: no new generation
  std::string warned;        // the class of gang::Memory::warned, or ""
  uint32_t restarts_without_progress = 0;
  std::string last_signature;                // of the newest user fault without progress since
  std::map<std::string, uint32_t> restarts;  // by cause (gang::RestartCounts)
  // For readers. It includes the fault of the generation that is being stopped, which user_fault_times leaves out: a coordinator that
  // takes over finds that fault again, and charges it.
  uint32_t user_faults = 0;
  std::vector<int64_t> user_fault_times;  // CLOCK_REALTIME
  bool progress_since_user_fault = false;
  uint32_t restart_limit = 0;
  uint64_t step_reached = 0;
  bool restore = false;  // whether, and from which step, the generation started
  uint64_t restore_step = 0;
  int64_t created_ns = 0;
  int64_t updated_ns = 0;
  std::string first_cause;                         // of the newest fault
  std::map<std::string, hang::SeenStarts> starts;  // by role, how long the program takes to its first steps
  std::string warm;                                // WarmStarts::Text
  std::string restart_cause;  // why this generation was started: that, or what was planned
  // Of a finished gang: whose status is the step's, or the code of all (see gang::FinishGang).
  std::optional<uint32_t> finish_cause;
  std::optional<int32_t> finish_code;
  std::vector<HistoryEvent> events;

  // Whether it is this gang's: of the same launch in the same run of the same submission.
  [[nodiscard]] bool IsOf(const GangJob& job) const {
    return gang == job.Id() && submission == job.submission && launched_ns == job.launched_ns;
  }
  // Whether it is a gang's of the same step, and of the same submission.
  [[nodiscard]] bool IsOfStep(const GangJob& job) const {
    return job_id == job.job_id && step_id == job.step_id && submission == job.submission;
  }
  [[nodiscard]] std::string Encode() const;
  // kCorrupt for anything else: such a record is reported and left alone.
  static Result<GangRecord> Decode(const std::string& text);
  // As `muster status --json` shows it; without the events.
  [[nodiscard]] nlohmann::json Summary() const;
  // What the store's list of gangs has of it (docs/formats.md): JSON.
  [[nodiscard]] std::string IndexEntry() const;
};

}  // namespace muster
