#include "daemon/coordinator/take_over.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/planted.h"
#include "daemon/coordinator/record_of_gang.h"
#include "daemon/lease/witnesses.h"

namespace muster {

TakeOver::TakeOver(const Origin& origin, GangJob job, std::string self, const Until& until)
    : origin_(origin),
      job_(std::move(job)),
      self_(std::move(self)),
      until_(until),
      claim_(job_.options.name, job_.job_id, job_.options.name_wait, until.refusal) {}

TakeOver::Decision TakeOver::Decide(const Found& found, const Try& now, const GangRecord& mine) const {
  const uint64_t term = found.fence.term;
  if (origin_.promised && term != origin_.after_term) {
    return Error{Errc::kConflict, fmt::format("the record has term {} and not {}", term, origin_.after_term)};
  }
  // Those who ask obey no term below the highest that they know. The store's is lower where an older state of the pool was restored.
  const uint64_t newest = std::max(term, origin_.known_term);
  Swap swap{.from = found.fence,
            .to = {newest + (MUSTER_PLANTED(same_term) ? 0 : 1), found.fence.generation}};
  if (found.record == nullptr) {
    swap.record = Named(mine, swap.to.term);
    return swap;
  }
  const GangRecord& record = *found.record;
  if (Status may = MayTake(record); !may) return may.error();
  if (!record.IsOf(job_)) {
    if (MayHoldName(record) && !claim_.IsFree(record)) return Held{record};
    swap.record = Named(mine, swap.to.term);
    return swap;
  }
  if (AwaitsSuccessor(now.now) && term > origin_.known_term) {
    if (record.term != term) {
      return Error{
          Errc::kConflict,
          fmt::format("gang {}: term {} has begun, of which those who ask have not heard", job_.Id(), term)};
    }
    // An earlier life of this daemon is no successor.
    if (record.coordinator != self_) return Elsewhere{record.coordinator, term};
  }
  if (Status may = MayReturn(record, now.here); !may) return may.error();
  swap.record = Named(record, swap.to.term);
  swap.after = Is(record, gang::State::kFinished) ? Swap::After::kEnd : Swap::After::kGang;
  return swap;
}

TakeOver::Next TakeOver::NotTaken(const Error& why, Nanos now) {
  claim_.NotTaken();
  // The agents look further: another candidate, or this one again.
  if (origin_.promised) return Next::kStepDown;
  // A gang that runs is not ended because the store is away, or full.
  if (MayPass(why) && !origin_.fresh) return Next::kAgain;
  const bool again = MayPass(why) || why.code == Errc::kConflict;
  return again && (now <= until_.refusal || claim_.Patient()) ? Next::kAgain : Next::kRefuse;
}

Status TakeOver::MayRunOn(const GangRecord& record, const GangJob& job) {
  if (!record.IsOfStep(job) || record.restart_count <= job.restart_count) return {};
  return Error{Errc::kDenied, fmt::format("the job was requeued; its gang is {} now", record.gang)};
}

// Members of an earlier run of a requeued job may still run on a node that was cut off. Their coordinator must not take the record of the
// newer run.
Status TakeOver::MayTake(const GangRecord& record) const {
  if (record.IsOf(job_)) {
    // The run is over, and a node whose launch was slow comes too late for it.
    if (origin_.fresh && Is(record, gang::State::kRequeueing))
      return Error{Errc::kInvalid, "the job is being requeued"};
    return {};
  }
  if (record.IsOfStep(job_)) {
    if (Status may = MayRunOn(record, job_); !may) return may;
    if (record.restart_count == job_.restart_count && record.launched_ns > job_.launched_ns)
      return Error{Errc::kInvalid, "Slurm has given the step's number again"};
  }
  if (!origin_.fresh) return Error{Errc::kInvalid, fmt::format("gang {} has the record now", record.gang)};
  return {};
}

// Not a record of this job's own former run, nor of a job that had this one's number before: a number is one job's at a time. A gang
// that Slurm has ended may be back, because its job was requeued.
bool TakeOver::MayHoldName(const GangRecord& record) const {
  if (job_.options.name[0] == '\0') return false;
  if (Is(record, gang::State::kFinished) && !record.terminating) return false;
  if (MUSTER_PLANTED(name_taken_from_the_living)) return false;
  if (record.job_id != job_.job_id) return true;
  return record.submission == job_.submission && record.step_id != job_.step_id &&
         record.restart_count >= job_.restart_count;
}

// A node that is cut off from the others may still reach the store. Once they have gone on without it, it does not take
// their record: not before so many of the witnesses are here that the rest is no majority. The record of an end may be taken by
// whoever has not heard of it.
Status TakeOver::MayReturn(const GangRecord& record, const std::set<uint32_t>& here) const {
  if (origin_.promised) return {};
  const auto witnesses = lease::WitnessSet::Of(record.witnesses);
  const bool lost = std::any_of(record.lost.begin(), record.lost.end(),
                                [&](uint32_t node) { return record.nodes[node] == self_; });
  if (!lost || Is(record, gang::State::kFinished) || witnesses.empty()) return {};
  const auto came =
      std::count_if(witnesses.begin(), witnesses.end(), [&](uint32_t node) { return here.contains(node); });
  if (static_cast<size_t>(came) >= witnesses.Blocking()) return {};
  return Error{Errc::kConflict, fmt::format("gang {}: it goes on without {}, and {} of {} witnesses are here",
                                            job_.Id(), self_, came, witnesses.size())};
}

// A musterd that comes back finds its agents, who know it as their coordinator, before the successor that has taken over
// meanwhile has announced itself to them. Taking over once more would make two who are obeyed by a part of the nodes.
bool TakeOver::AwaitsSuccessor(Nanos now) const {
  return !origin_.fresh && !origin_.promised && now < until_.successor;
}

GangRecord TakeOver::Named(GangRecord record, uint64_t term) const {
  record.term = term;
  if (!MUSTER_PLANTED(unnamed)) record.coordinator = self_;
  return record;
}

}  // namespace muster
