// How a coordinator comes to its gang's record, and how it ends when another has it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/link/link.h"
#include "daemon/slurm/topology.h"

namespace muster {
namespace {

constexpr auto kTakeoverRetry = std::chrono::milliseconds(1000);
constexpr auto kSucceedRetry = std::chrono::milliseconds(300);
// Who has promised the term must not begin another try after that: the others wait for the outcome.
constexpr auto kSucceed = std::chrono::seconds(5);

gang::Memory MemoryOf(const GangRecord& record) {
  gang::Memory memory;
  memory.user_fault_times = record.user_fault_times;
  memory.progress_since_user_fault = record.progress_since_user_fault;
  for (auto& [cause, count] : memory.restarts) {
    if (const auto found = record.restarts.find(cause); found != record.restarts.end()) count = found->second;
  }
  memory.restarts_without_progress = record.restarts_without_progress;
  memory.max_step = record.step_reached;
  memory.last_signature = record.last_signature;
  memory.active = record.active;
  memory.lost = record.lost;
  memory.ended = record.ended;
  memory.away = record.away;
  memory.excluded = record.excluded;
  memory.draining = record.draining;
  memory.task_counts = record.task_counts;
  memory.succeeding = record.succeeding;
  memory.terminating = record.terminating;
  memory.requeueing = record.state == gang::ToString(gang::State::kRequeueing);
  return memory;
}

// Whether a record may be taken over for this gang. What an earlier incarnation of a requeued job left running on a
// node that was cut off must not end the newer one. kDenied: it must not go on at all.
Status MayTake(const GangRecord& record, const GangJob& job, bool fresh) {
  // Of a run that is over: what is left of its launch somewhere has come too late.
  if (record.IsOf(job) && fresh && record.state == gang::ToString(gang::State::kRequeueing))
    return Error{Errc::kInvalid, "the job is being requeued"};
  if (record.IsOf(job)) return {};
  if (record.job_id == job.job_id && record.step_id == job.step_id && record.submission == job.submission) {
    if (record.restart_count > job.restart_count)
      return Error{Errc::kDenied, fmt::format("the job was requeued; its gang is {} now", record.gang)};
    if (record.restart_count == job.restart_count && record.launched_ns > job.launched_ns)
      return Error{Errc::kInvalid, "Slurm has given the step's number again"};
  }
  if (!fresh) return Error{Errc::kInvalid, fmt::format("gang {} has the record now", record.gang)};
  return {};
}

// A node that is cut off from the others may still reach the store. Once they have gone on without it, it does not take
// their record: not before so many of the witnesses are here that the rest is no majority. The record of an end may be taken by
// whoever has not heard of it.
Status MayReturn(const GangRecord& record, const GangJob& job, const std::string& self,
                 const std::set<uint32_t>& here) {
  const auto witnesses = lease::WitnessSet::Of(record.witnesses);
  const bool lost = std::any_of(record.lost.begin(), record.lost.end(),
                                [&](uint32_t node) { return record.nodes[node] == self; });
  const bool over = record.state == gang::ToString(gang::State::kFinished);
  if (!record.IsOf(job) || !lost || over || witnesses.empty()) return {};
  const auto came =
      std::count_if(witnesses.begin(), witnesses.end(), [&](uint32_t node) { return here.contains(node); });
  if (static_cast<size_t>(came) >= witnesses.Blocking()) return {};
  return Error{Errc::kConflict, fmt::format("gang {}: it goes on without {}, and {} of {} witnesses are here",
                                            job.Id(), self, came, witnesses.size())};
}

// The record says who has the term, for those who read it before the coordinator's first beat.
std::string NamedIn(GangRecord record, uint64_t term, const std::string& coordinator) {
  record.term = term;
  record.coordinator = coordinator;
  record.updated_ns = RealtimeNs();
  return record.Encode();
}

// From exactly this term to the next one: what another candidate has taken meanwhile stays taken.
Result<GangHead> Succeed(Catalog& catalog, GangHead head, uint64_t after_term, const std::string& record,
                         const std::weak_ptr<Coordinator>& alive) {
  if (head.fence.term != after_term) {
    return Error{Errc::kConflict,
                 fmt::format("the record has term {} and not {}", head.fence.term, after_term)};
  }
  const Fence next{head.fence.term + 1, head.fence.generation};
  const auto end = std::chrono::steady_clock::now() + kSucceed;
  const Status taken = catalog.AdvanceForSure(head.fence, next, record, [&](const Error&) {
    if (alive.expired() || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kSucceedRetry);
    return true;
  });
  if (!taken) return taken.error();
  head.fence = next;
  return head;
}

}  // namespace

void Coordinator::Begin(Origin origin, std::function<void()> over) {
  origin_ = std::move(origin);
  over_ = std::move(over);
  takeover_deadline_ = loop_.Now() + std::chrono::seconds(job_.options.join_seconds);
  // One that has died before it could announce itself is found silent by then.
  await_until_ = clock_->Now() + 2 * config_.silence_ms * 1'000'000;
  TryTakeOver();
}

// A musterd that comes back finds its agents, who know it as their coordinator, before the successor that has taken over
// meanwhile has announced itself to them. Taking over once more would make two who are obeyed by a part of the nodes.
bool Coordinator::AwaitsSuccessor() const {
  return !origin_.fresh && !origin_.promised && clock_->Now() < await_until_;
}

void Coordinator::TryTakeOver() {
  takeover_timer_ = 0;
  asked_at_ = clock_->Now();
  worker_->Do([weak = weak_from_this(), catalog = catalog_, record = Record(), fresh_gang = origin_.fresh,
               promised = origin_.promised, after_term = origin_.after_term,
               newest = AwaitsSuccessor() ? origin_.known_term : UINT64_MAX, job = job_, self = self_,
               here = Here(), topology = job_.options.order_by_topology ? context_.topology : nullptr,
               &loop = loop_] {
    if (topology) topology->Refresh();  // for Settings()
    // A foreign or damaged record is reported and left alone: nothing is written over it.
    Result<GangHead> head = catalog->Load();
    const bool fresh = !head && head.error().code == Errc::kNotFound;
    // Another gang's stays, with its key, until this coordinator knows how to go on from it.
    std::string named = fresh ? NamedIn(record, 1, self) : head ? head->record : "";
    if (head && !head->record.empty()) {
      const uint64_t term = head->fence.term;
      if (auto decoded = GangRecord::Decode(head->record); !decoded) {
        head = decoded.error();
      } else if (Status ours = MayTake(*decoded, job, fresh_gang); !ours) {
        head = ours.error();
      } else if (decoded->IsOf(job)) {
        // One of an earlier life of this daemon is no successor. (A daemon of the first versions names itself a little
        // after it has taken the term.)
        if (term > newest && decoded->term == term && decoded->coordinator != self) {
          return loop.Post([weak, successor = decoded->coordinator, term] {
            if (const auto self = weak.lock(); self && !self->fence_.lost()) self->StepDown(successor, term);
          });
        }
        named = NamedIn(*decoded, term + 1, self);
        Status may = promised ? Status() : MayReturn(*decoded, job, self, here);
        if (term > newest && decoded->term != term) {
          may = Error{Errc::kConflict,
                      fmt::format("gang {}: term {} has begun, of which those who ask have not "
                                  "heard",
                                  job.Id(), term)};
        }
        if (!may) head = may.error();
      }
    }
    if (promised && head) {
      head = Succeed(*catalog, *std::move(head), after_term, named, weak);
    } else if (!promised && (head || fresh)) {
      head = catalog->TakeOver(named, record.IndexEntry(), head ? std::optional(head->fence) : std::nullopt);
    }
    loop.Post([weak, head = std::move(head)]() mutable {
      if (const auto self = weak.lock()) self->TakenOver(std::move(head));
    });
  });
}

void Coordinator::TakenOver(Result<GangHead> head) {
  if (!head) {
    const bool again = MayPass(head.error()) || head.error().code == Errc::kConflict;
    if (origin_.taken) origin_.taken(false);
    if (origin_.promised) {
      // The agents look further: another candidate, or this one again.
      spdlog::warn("gang {}: not taken over: {}", job_.Id(), head.error().message);
      return StepDown("");
    }
    // A gang that runs is not ended because the store is away, or full.
    const bool patient = !origin_.fresh && MayPass(head.error());
    if (!again || (!patient && loop_.Now() > takeover_deadline_)) {
      job_is_over_ = head.error().code == Errc::kDenied;
      return Refuse(fmt::format("gang {}: cannot take its record over in {}: {}", job_.Id(),
                                store_->Describe(), head.error().message));
    }
    spdlog::warn("gang {}: {}; trying again", job_.Id(), head.error().message);
    takeover_timer_ = loop_.After(kTakeoverRetry, [this] {
      takeover_timer_ = 0;
      const bool asked = std::any_of(agents_.begin(), agents_.end(),
                                     [](const auto& item) { return item.second.link != nullptr; });
      // They have found the one that coordinates.
      if (!asked) return StepDown("");
      TryTakeOver();
    });
    return;
  }
  fence_.Take(head->fence);
  starts_.SetNewest(head->latest);
  for (const CheckpointInfo& checkpoint : head->checkpoints)
    saved_in_[checkpoint.step] = checkpoint.fence.generation;
  for (const CheckpointInfo& checkpoint : head->checkpoints) {
    if (checkpoint.good && checkpoint.fence.generation == fence_.fence().generation)
      saves_.CommittedBefore(checkpoint.fence.generation, checkpoint.step);
  }
  if (origin_.taken) origin_.taken(true);
  gang::Memory memory;
  auto previous = GangRecord::Decode(head->record);
  const bool ours = previous && previous->IsOf(job_);
  if (ours) {
    if (previous->state == gang::ToString(gang::State::kFinished)) return OverAlready(*previous);
    memory = MemoryOf(*previous);
    memory.running = previous->state != gang::ToString(gang::State::kJoining);
    history_ = std::move(previous->events);
    created_ns_ = previous->created_ns;
    cause_ = previous->first_cause;
    restart_cause_ = previous->restart_cause;
    if (memory.running) {
      const Starts::Step from = previous->restore ? Starts::Step(previous->restore_step) : std::nullopt;
      starts_.SetFrom(from);
      starts_.Inherit(previous->generation, from);
    }
  }
  memory.generation = fence_.fence().generation;
  spdlog::info("gang {}: this node coordinates, term {}, generation {}{}", job_.Id(), fence_.term(),
               fence_.fence().generation, memory.running ? ", recovering" : "");
  gang_.emplace(Settings(), memory);
  order_->Recorded(fence_.fence().generation);
  BeginLeases(ours && memory.running ? &*previous : nullptr);
  AddHistory("coordinator", fmt::format("{} coordinates, term {}", self_, fence_.term()));
  Carry(gang_->Begin());
  LeadWhenDurable();
  AskSlurm();
  orphans_.Collect();
  for (const Early& early : std::exchange(early_, {})) {
    if (agents_[early.node].link != early.link) continue;  // it has gone, or said more on a newer link
    if (early.message.has_register_()) {
      Registered(early.node, early.message.register_());
    } else {
      Message(early.node, early.message);
    }
  }
}

// The agents have missed the end, with the coordinator that was before this one: their supervisors may leave.
void Coordinator::OverAlready(const GangRecord& record) {
  end_ = FinishOf(record.succeeded, record.finish_cause, record.finish_code);
  auto message = NewMessage();
  *message.mutable_finish() = *end_;
  Broadcast(message);
  fence_.Lose();
  MaybeOver();
}

void Coordinator::Refuse(const std::string& text) {
  // What a requeued job has left behind is refused in the course of things.
  spdlog::log(job_is_over_ ? spdlog::level::warn : spdlog::level::err, "{}", text);
  refusal_ = text;
  auto message = NewMessage();
  message.mutable_refused()->set_text(text);
  message.mutable_refused()->set_job_is_over(job_is_over_);
  Broadcast(message);
  fence_.Lose();
  EndLeases();
  MaybeOver();
}

// A newer term has the record: this coordinator is not obeyed any more. Another node may coordinate this gang now,
// and then its members run on; or another job has taken the key, and then they must not.
void Coordinator::Deposed(const std::string& why) {
  if (!fence_.AskWhose()) return;
  // Not behind what the worker may be stuck with: what cannot be written can be read.
  context_.reader->Do([weak = weak_from_this(), catalog = catalog_, why, &loop = loop_] {
    const Result<GangHead> head = catalog->Load();
    const Result<GangRecord> record =
        head ? GangRecord::Decode(head->record) : Result<GangRecord>(head.error());
    loop.Post([weak, record, why, read = head.ok()] {
      const auto self = weak.lock();
      if (!self || self->fence_.lost()) return;
      if (!read) return self->StepDown("");  // nobody knows whose it is
      if (record && record->IsOf(self->job_)) return self->StepDown(record->coordinator);
      if (self->ending_.finished())
        return self->StepDown("");  // a later job of the same name goes on from here
      self->Refuse(fmt::format(
          "gang {}: another coordinator has taken over {} ({}); does another job use the same name=KEY?",
          self->job_.Id(), self->job_.Key(), why));
    });
  });
}

void Coordinator::StepDown(const std::string& successor, uint64_t term) {
  if (fence_.lost()) return;
  spdlog::warn("gang {}: {} coordinates now; this coordinator of term {} steps down", job_.Id(),
               successor.empty() ? "another node" : successor, fence_.term());
  fence_.Lose();
  EndLeases();
  auto message = NewMessage();
  message.set_term(term);
  const auto node = NodeOf(successor);
  message.mutable_elsewhere()->set_known(node.has_value());
  message.mutable_elsewhere()->set_node(node.value_or(0));
  Broadcast(message);
  MaybeOver();
}

}  // namespace muster
