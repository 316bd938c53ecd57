// What the gang has to do with Slurm beyond its step: the job's facts and its end, nodes down or drained, requeue.
#include "daemon/slurm/slurm.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/link/link.h"

namespace muster {
namespace {

constexpr auto kPoll = std::chrono::seconds(60);  // limits may be changed while the job runs
constexpr auto kPollNearEnd = std::chrono::seconds(2);
constexpr auto kSlurmRetry = std::chrono::seconds(5);
constexpr auto kRaising = std::chrono::milliseconds(300);
constexpr int64_t kMarginShare = 4;
// slurmctld looks each half a minute, and sends the signal up to a minute before it is due.
constexpr int64_t kWarnedBefore = 75;  // seconds
constexpr int64_t kForRequeueMs = 20'000;
constexpr size_t kMinWitnesses = 2;  // nodes that must be there for one to be called down

JobRun RunOf(const GangJob& job, int64_t created_ns) {
  return {job.job_id, job.restart_count, job.uid, created_ns / 1'000'000'000};
}

int64_t LeftMs(const SlurmJob& facts) {
  return facts.end_time * 1000 - RealtimeNs() / 1'000'000;
}

// Whether the job's own --signal, which it wants so many seconds before its end, is due. scancel --signal at that time looks the same.
bool IsWarning(const SlurmJob& facts, uint32_t warn_seconds) {
  if (warn_seconds == 0 || facts.state != "RUNNING" || facts.preempt_time > 0 || facts.end_time == 0)
    return false;
  const int64_t left = LeftMs(facts) / 1000;
  return left > 0 && left <= warn_seconds + kWarnedBefore;
}

bool MayRunAgain(const SlurmJob& facts, const GangJob& job) {
  return facts.state == "PREEMPTED" || facts.restart_count > job.restart_count;
}

bool MayBeRequeued(const SlurmJob& facts, const GangJob& job) {
  return facts.batch && facts.requeueable && job.options.requeue;
}

}  // namespace

void Coordinator::AskSlurm() {
  slurm_timer_ = 0;
  if (context_.slurm == nullptr || core_.lost()) return;
  context_.slurm->JobInfo(
      RunOf(job_, created_ns_), Slurm::Sharing::kSkip, [weak = weak_from_this()](Result<SlurmJob> facts) {
        const auto self = weak.lock();
        if (!self || self->core_.lost()) return;
        std::chrono::milliseconds again = kSlurmRetry;
        if (facts) {
          self->job_in_slurm_ = std::make_shared<const SlurmJob>(*facts);
          again = self->TakeFacts(*facts);
          self->MaybeWarned(*facts, std::exchange(self->warn_seconds_, 0));
        } else {
          spdlog::warn("gang {}: {}", self->job_.Id(), facts.error().message);
          // The end that was known comes all the same.
          if (self->job_in_slurm_) again = std::min(again, self->TakeFacts(*self->job_in_slurm_));
        }
        self->slurm_timer_ = self->loop_.After(again, [raw = self.get()] { raw->AskSlurm(); });
      });
}

// Gives the time after which Slurm is to be asked again. A limit may be changed at any time: Slurm is asked again when the end seems to
// be near, and after that often.
std::chrono::milliseconds Coordinator::TakeFacts(const SlurmJob& facts) {
  gang::JobFacts known;
  if (facts.batch) known.batch_node = NodeOf(facts.batch_host);
  known.can_requeue = facts.batch && facts.requeueable;
  core_.Feed(known);
  if (facts.state == "RUNNING" && facts.preempt_time > 0) {
    announced_ = gang::Announced::kPreemption;
    core_.Feed(gang::EndNear{gang::CauseClass::kPreemption, facts.grace_seconds * 500LL});
    return kPoll;
  }
  if (facts.end_time == 0 || facts.state != "RUNNING") return kPoll;
  const int64_t left_ms = LeftMs(facts);
  // A short job keeps most of its time for its work.
  const int64_t limit_ms = (facts.end_time - facts.start_time) * 1000;
  const int64_t margin_ms = std::min(config_.time_limit_margin_ms, limit_ms / kMarginShare);
  if (margin_ms <= 0 || left_ms <= 0) return kPoll;
  if (left_ms > margin_ms) {
    // Members that were asked to exit may do so.
    if (announced_ == gang::Announced::kTimeLimit && MayBeRequeued(facts, job_)) {
      announced_ = gang::Announced::kNothing;
      core_.Feed(gang::EndMoved{});
    }
    return std::min<std::chrono::milliseconds>(kPoll, std::chrono::milliseconds(left_ms - margin_ms));
  }
  // The requeue itself needs a part of what is left.
  announced_ = gang::Announced::kTimeLimit;
  core_.Feed(gang::EndNear{gang::CauseClass::kTimeLimit, left_ms / 2});
  return kPollNearEnd;
}

// SIGTERM from Slurm may be preemption's, or the job's own warning, with time left: then the job can go on elsewhere. Another signal is the
// job's own warning, or a scancel --signal, which concerns the program alone.
void Coordinator::OnTerminating(const v1::Terminating& message) {
  if (message.signal() != SIGTERM) {
    // What Slurm has said last decides: a member may end before Slurm answers a question. A coordinator that has just taken over waits
    // for Slurm's first answer.
    if (!job_in_slurm_) {
      warn_seconds_ = message.warn_seconds();
    } else {
      MaybeWarned(*job_in_slurm_, message.warn_seconds());
    }
    return;
  }
  // Every task says so, some when the answer is there already: each time the reason is not known until Slurm is asked.
  gang::Terminating event{message.task(), message.signal(), context_.slurm != nullptr};
  core_.Feed(event);
  if (!event.undecided || std::exchange(asking_why_, true)) return;
  context_.slurm->JobInfo(RunOf(job_, created_ns_), Slurm::Sharing::kSkip,
                          [weak = weak_from_this(), event,
                           warn_seconds = message.warn_seconds()](Result<SlurmJob> facts) mutable {
                            const auto self = weak.lock();
                            if (!self) return;
                            self->asking_why_ = false;
                            if (self->core_.lost()) return;
                            if (facts && facts->state == "RUNNING" && facts->preempt_time > 0) {
                              self->TakeFacts(*facts);
                              return;
                            }
                            // Where Slurm does not answer, what it said last decides.
                            if (!facts && self->job_in_slurm_) facts = *self->job_in_slurm_;
                            if (facts && self->MaybeWarned(*facts, warn_seconds)) return;
                            // Unless it was this coordinator that had it requeued.
                            if (facts && facts->batch && facts->restart_count > self->job_.restart_count &&
                                self->core_.gang().state() != gang::State::kRequeueing)
                              self->RequeuedBySlurm();
                            event.undecided = false;
                            event.may_run_again = facts && MayRunAgain(*facts, self->job_);
                            self->core_.Feed(event);
                          });
}

// False: the signal was no warning, or the job may not be requeued.
bool Coordinator::MaybeWarned(const SlurmJob& facts, uint32_t warn_seconds) {
  if (!IsWarning(facts, warn_seconds) || !MayBeRequeued(facts, job_)) return false;
  announced_ = gang::Announced::kTimeLimit;
  AddHistory("warned",
             "Slurm has sent the members the job's --signal: the job is requeued when they have ended");
  // The members may take what is left but for the requeue, or half of a short rest.
  const int64_t left = LeftMs(facts);
  core_.Feed(gang::EndNear{gang::CauseClass::kTimeLimit, std::max(left / 2, left - kForRequeueMs), true});
  return true;
}

// By a preemption that leaves no time, or by somebody's scontrol requeue. Slurm has it wait for the lifetime of its
// credentials (BeginTime, two minutes) before it may run again.
void Coordinator::RequeuedBySlurm() {
  AddHistory("requeue", job_.options.requeue
                            ? "Slurm has requeued the job: it may run again as soon as there is room"
                            : "Slurm has requeued the job");
  if (!job_.options.requeue) return;
  context_.slurm->Requeue(RunOf(job_, created_ns_), {}, "", Slurm::Script::kRuns,
                          [id = job_.Id()](const Status& done) {
                            if (!done) spdlog::warn("gang {}: {}", id, done.error().message);
                          });
}

void Coordinator::Do(const gang::LoseNode& action) {
  if (context_.slurm == nullptr) return;
  size_t present = 0;
  for (const gang::Gang::Node& node : core_.gang().nodes()) present += node.present ? 1 : 0;
  if (present < kMinWitnesses) {
    AddHistory("slurm",
               fmt::format("{} is not set DOWN: there is no second observer", job_.hosts[action.node]));
    return;
  }
  // One that has a successor may still find a node silent, the successor's for example: only the newest tells Slurm. The store
  // knows who that is.
  const auto settled = std::make_shared<bool>(false);
  SetDownByQuorum(action, settled);
  SetDownIfNewest(action, settled);
}

void Coordinator::SetDownIfNewest(const gang::LoseNode& action, const std::shared_ptr<bool>& settled) {
  context_.reader->Do([weak = weak_from_this(), catalog = catalog_, clock = clock_, action, settled,
                       &loop = loop_] {
    const lease::Nanos asked = clock->Now();
    const Result<GangHead> head = catalog->Load();
    loop.Post([weak, head, action, settled, asked] {
      const auto self = weak.lock();
      if (!self || self->core_.lost()) return;
      if (head && self->core_.Overtaken(head->fence.term)) return;
      const bool silent = !head && head.error().code == Errc::kUnavailable;
      if (*settled || (silent && self->context_.beat != nullptr)) return;
      // Asked again are a store that has a newer term, which may be the term that this coordinator is raising, and a store whose
      // answer is old, because this host has stood still since it asked: another coordinator may have followed.
      const bool newer = head && head->fence.term > self->core_.fence().term();
      if (newer || self->clock_->Now() - asked > self->config_.lease_ms * 1'000'000) {
        self->loop_.After(kRaising, [weak, action, settled] {
          if (const auto self = weak.lock()) self->SetDownIfNewest(action, settled);
        });
        return;
      }
      *settled = true;
      self->SetDown(action, head ? Status() : Status(head.error()));
    });
  });
}

// A node that is not DOWN when it boots again ends the step: who has most of the witnesses, who would have gone over to a
// successor by then, does not wait for a store that does not answer.
void Coordinator::SetDownByQuorum(const gang::LoseNode& action, const std::shared_ptr<bool>& settled) {
  const auto lease = std::chrono::milliseconds(config_.lease_ms);
  const auto due = loop_.Now() + 2 * lease;
  loop_.After(2 * lease, [weak = weak_from_this(), action, settled, lease, due] {
    const auto self = weak.lock();
    if (!self || *settled || self->core_.lost() || !self->core_.gang().nodes()[action.node].lost) return;
    // A host that has stood still does not know yet whom they follow.
    const bool late = self->loop_.Now() > due + lease;
    if (late || !self->core_.terms().quorum()) return self->SetDownByQuorum(action, settled);
    *settled = true;
    self->SetDown(action, {});
  });
}

void Coordinator::SetDown(const gang::LoseNode& action, const Status& newest) {
  const auto say = [weak = weak_from_this(), host = job_.hosts[action.node]](const Status& done) {
    const auto self = weak.lock();
    if (!self) return;
    self->AddHistory("slurm", done ? fmt::format("{} is set DOWN", host)
                                   : fmt::format("{} is not set DOWN: {}", host, done.error().message));
  };
  if (!newest) return say(newest);
  if (!core_.gang().nodes()[action.node].lost)
    return AddHistory("slurm", fmt::format("{} is not set DOWN: it is back", job_.hosts[action.node]));
  const gang::State state = core_.gang().state();
  // Should slurmd live there it kills the job's script then, and Slurm calls the job failed: the requeue does both at once.
  if (core_.gang().IsBatchHost(action.node) && state != gang::State::kFinished)
    return down_later_.push_back(action);
  const bool over = state == gang::State::kFinished || state == gang::State::kRequeueing;
  if (!over && job_.components.EndWith(action.node, down_)) {
    AddHistory("slurm",
               fmt::format("{} is not set DOWN before the gang is over: Slurm would end the job, of which a "
                           "component has one node (it does when SlurmdTimeout is over)",
                           job_.hosts[action.node]));
    return down_later_.push_back(action);
  }
  down_.push_back(action.node);
  Comment(action.reason);
  context_.slurm->NodeDown(RunOf(job_, created_ns_), job_.hosts[action.node], action.reason, say);
}

// srun waits for the tasks of a node that is dead until Slurm knows that it is.
void Coordinator::SetDownLater() {
  for (const gang::LoseNode& action : std::exchange(down_later_, {})) SetDown(action, {});
}

void Coordinator::Do(const gang::DrainInSlurm& action) {
  if (context_.slurm == nullptr) return;
  context_.slurm->NodeDrain(
      job_.hosts[action.node], action.reason,
      [weak = weak_from_this(), host = job_.hosts[action.node]](const Status& done) {
        const auto self = weak.lock();
        if (!self) return;
        self->AddHistory("slurm", done ? fmt::format("{} is drained", host)
                                       : fmt::format("{} is not drained: {}", host, done.error().message));
      });
}

Status Coordinator::OrderRequeue(const gang::RequeueJob& action) {
  if (context_.slurm == nullptr) return Error{Errc::kUnavailable, "this daemon has no access to Slurm"};
  requeue_ = action;
  return {};
}

void Coordinator::Requeue() {
  const gang::RequeueJob& action = requeue_;
  // Without its batch host Slurm would wait for what is left of the job on the others.
  if (core_.gang().BatchHostLost()) {
    auto message = NewMessage();
    message.mutable_refused()->set_text("the job is requeued: " + action.reason);
    message.mutable_refused()->set_job_is_over(true);
    message.mutable_refused()->set_slurm_ends_it(true);
    Broadcast(message);
  }
  // The script's node is the last one that is set DOWN.
  std::vector<std::string> dead;
  for (const uint32_t node : action.dead)
    dead.insert(core_.gang().IsBatchHost(node) ? dead.end() : dead.begin(), job_.hosts[node]);
  const auto script = action.launch_failed           ? Slurm::Script::kMayHaveFailed
                      : core_.gang().BatchHostLost() ? Slurm::Script::kMayBeKilled
                                                     : Slurm::Script::kRuns;
  context_.slurm->Requeue(RunOf(job_, created_ns_), std::move(dead), action.reason, script,
                          [weak = weak_from_this()](const Status& done) {
                            const auto self = weak.lock();
                            if (!self || done) return;
                            self->core_.Feed(gang::RequeueFailed{done.error().message});
                          });
}

void Coordinator::Comment(const std::string& text) {
  if (context_.slurm == nullptr) return;
  context_.slurm->SetComment(
      RunOf(job_, created_ns_), "muster: " + text, [weak = weak_from_this()](const Status& done) {
        const auto self = weak.lock();
        if (!self || done || std::exchange(self->comment_refused_, true)) return;
        spdlog::warn("gang {}: the job's comment in Slurm does not say what has happened: {}",
                     self->job_.Id(), done.error().message);
      });
}

}  // namespace muster
