#include "daemon/coordinator/record_of_gang.h"

#include <utility>

#include "base/planted.h"

namespace muster {
namespace {

void SetGang(const gang::Gang& gang, GangRecord* record) {
  gang::Memory memory = gang.Remember();
  record->state = gang::ToString(gang.state());
  record->succeeded = gang.succeeded();
  record->generation = gang.generation();
  record->active = std::move(memory.active);
  record->before = std::move(memory.before);
  record->placed = memory.placed;
  record->lost = std::move(memory.lost);
  record->ended = std::move(memory.ended);
  record->away = std::move(memory.away);
  record->excluded = std::move(memory.excluded);
  record->draining = std::move(memory.draining);
  for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
    if (gang.nodes()[node].exiting > 0) record->exiting.push_back(node);
  }
  record->task_counts = std::move(memory.task_counts);
  if (gang.settings().roles.size() > 1) {
    for (uint32_t node = 0; node < gang.nodes().size(); ++node)
      record->roles.push_back(gang.RoleOf(node).name);
  }
  record->succeeding = memory.succeeding;
  record->terminating = memory.terminating;
  if (memory.warned) record->warned = gang::ToString(*memory.warned);
  record->restarts_without_progress = memory.restarts_without_progress;
  record->last_signature = std::move(memory.last_signature);
  record->restarts = gang.restarts();
  record->user_faults = gang.user_faults();
  record->user_fault_times = std::move(memory.user_fault_times);
  record->progress_since_user_fault = memory.progress_since_user_fault;
  record->step_reached = gang.max_step();
  record->finish_cause = gang.finish_cause();
  record->finish_code = gang.finish_code();
}

bool MembersMayRun(const GangRecord& record) {
  return !Is(record, gang::State::kJoining) && !MUSTER_PLANTED(running_forgotten);
}

}  // namespace

GangRecord RecordOf(const RecordParts& parts) {
  const GangJob& job = parts.job;
  GangRecord record;
  record.gang = job.Id();
  record.key = job.Key();
  record.job_id = job.job_id;
  record.step_id = job.step_id;
  record.restart_count = job.restart_count;
  record.submission = job.submission;
  record.launched_ns = job.launched_ns;
  record.uid = job.uid;
  record.state = gang::ToString(gang::State::kJoining);
  record.term = parts.fence.term();
  record.coordinator = parts.coordinator;
  record.task_count = job.task_count;
  record.nodes = job.hosts;
  record.restarts = gang::NoRestarts();
  record.restart_limit = job.options.restarts;
  if (parts.gang != nullptr) SetGang(*parts.gang, &record);
  record.restore = parts.starts.from().has_value();
  record.restore_step = parts.starts.from().value_or(0);
  SetWitnesses(parts.terms.sets(), &record);
  return record;
}

void SetWitnesses(Terms::Sets sets, GangRecord* record) {
  record->witnesses = std::move(sets.witnesses);
  record->former = std::move(sets.former);
}

gang::Memory MemoryOf(const GangRecord& record) {
  gang::Memory memory;
  memory.generation = record.generation;
  memory.running = MembersMayRun(record);
  memory.user_fault_times = record.user_fault_times;
  memory.progress_since_user_fault = record.progress_since_user_fault;
  for (auto& [cause, count] : memory.restarts) {
    if (const auto found = record.restarts.find(cause); found != record.restarts.end()) count = found->second;
  }
  memory.restarts_without_progress = record.restarts_without_progress;
  memory.max_step = record.step_reached;
  memory.last_signature = record.last_signature;
  if (!MUSTER_PLANTED(active_forgotten)) memory.active = record.active;
  memory.before = record.before;
  memory.placed = record.placed;
  memory.lost = record.lost;
  memory.ended = record.ended;
  memory.away = record.away;
  memory.excluded = record.excluded;
  memory.draining = record.draining;
  memory.task_counts = record.task_counts;
  memory.succeeding = record.succeeding;
  memory.terminating = record.terminating;
  for (const auto cause : {gang::CauseClass::kPreemption, gang::CauseClass::kTimeLimit}) {
    if (record.warned == gang::ToString(cause)) memory.warned = cause;
  }
  memory.requeueing = Is(record, gang::State::kRequeueing);
  return memory;
}

std::optional<Terms::Found> TermsOf(const GangRecord& record) {
  if (!MembersMayRun(record)) return std::nullopt;
  return Terms::Found{{record.witnesses, record.former}, record.away};
}

void Inherit(const GangRecord& record, Starts* starts) {
  if (!MembersMayRun(record)) return;
  const Starts::Step from = record.restore ? Starts::Step(record.restore_step) : std::nullopt;
  starts->SetFrom(from);
  starts->Inherit(record.generation, from);
}

}  // namespace muster
