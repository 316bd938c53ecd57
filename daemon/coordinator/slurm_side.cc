#include "daemon/coordinator/slurm_side.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"

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
constexpr auto kStartsMeanwhile = std::chrono::seconds(5);
constexpr size_t kMinWitnesses = 2;  // nodes that must be there for one to be called down

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

// The members may take what is left of the job's time but for the requeue, or half of a short rest.
int64_t LeftToSaveMs(const SlurmJob& facts) {
  const int64_t left_ms = LeftMs(facts);
  return std::max(left_ms / 2, left_ms - kForRequeueMs);
}

bool MayRunAgain(const SlurmJob& facts, const GangJob& job) {
  if (facts.state == "CANCELLED") return false;
  return facts.state == "PREEMPTED" || facts.state == "NODE_FAIL" || facts.preempt_time > 0 ||
         facts.restart_count > job.restart_count;
}

bool MayBeRequeued(const SlurmJob& facts, const GangJob& job) {
  return facts.batch && facts.requeueable && job.options.requeue;
}

}  // namespace

SlurmSide::SlurmSide(Loop& loop, Slurm* slurm, const GangJob& job, CoordinatorCore& core,
                     const Settings& settings, Hooks hooks)
    : loop_(loop),
      slurm_(slurm),
      job_(job),
      core_(core),
      settings_(settings),
      hooks_(std::move(hooks)),
      comment_timer_(loop),
      timer_(loop),
      calls_(loop) {}

JobRun SlurmSide::Run() const {
  return {job_.job_id, job_.restart_count, job_.uid, created_ns_ / 1'000'000'000};
}

void SlurmSide::Begin() {
  if (slurm_ == nullptr || core_.lost()) return;
  slurm_->JobInfo(Run(), Slurm::Sharing::kSkip, calls_.Here([this](const Result<SlurmJob>& facts) {
    if (core_.lost()) return;
    std::chrono::milliseconds again = kSlurmRetry;
    if (facts) {
      facts_ = *facts;
      again = TakeFacts(*facts);
      if (!asking_why_) MaybeWarned(*facts, std::exchange(warn_seconds_, 0));
    } else {
      spdlog::warn("gang {}: {}", job_.Id(), facts.error().message);
      // The end that was known comes all the same.
      if (facts_) again = std::min(again, TakeFacts(*facts_));
    }
    timer_.After(again, [this] { Begin(); });
  }));
}

// Gives the time after which Slurm is to be asked again. A limit may be changed at any time: Slurm is asked again when the end seems to
// be near, and after that often.
std::chrono::milliseconds SlurmSide::TakeFacts(const SlurmJob& facts) {
  gang::JobFacts known;
  if (facts.batch) known.batch_node = job_.NodeOf(facts.batch_host);
  known.can_requeue = facts.batch && facts.requeueable;
  core_.Feed(known);
  if (asking_why_) return kSlurmRetry;  // what this answer knows may be older than a cancel
  if (facts.state == "RUNNING" && facts.preempt_time > 0) {
    announced_ = gang::Announced::kPreemption;
    // The requeue itself needs a part of the time.
    const int64_t stop_ms = facts.preempt_time * 1'000 + facts.grace_seconds * 500LL;
    // Slurm's clock may be another than this host's.
    core_.Feed(gang::EndNear{
        gang::CauseClass::kPreemption,
        std::clamp<int64_t>(stop_ms - RealtimeNs() / 1'000'000, 0, facts.grace_seconds * 500LL)});
    return kPoll;
  }
  const auto warned = core_.gang().warned();
  // Slurm's SIGTERM may have come to nobody who tells of it.
  if (warned && facts.state == "CANCELLED") core_.Feed(gang::Terminating{0, SIGTERM});
  if (facts.end_time == 0 || facts.state != "RUNNING") return kPoll;
  const int64_t left_ms = LeftMs(facts);
  // After a takeover the members keep the time that they had.
  if (warned == gang::CauseClass::kTimeLimit && left_ms > 0) {
    announced_ = gang::Announced::kTimeLimit;
    core_.Feed(gang::EndNear{gang::CauseClass::kTimeLimit, LeftToSaveMs(facts)});
    return kPollNearEnd;
  }
  // A short job keeps most of its time for its work.
  const int64_t limit_ms = (facts.end_time - facts.start_time) * 1000;
  const int64_t margin_ms = std::min(settings_.time_limit_margin_ms, limit_ms / kMarginShare);
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
void SlurmSide::OnTerminating(const v1::Terminating& message) {
  if (message.signal() != SIGTERM) {
    // What Slurm has said last decides: a member may end before Slurm answers a question. A coordinator that has just taken over waits
    // for Slurm's first answer.
    if (!facts_) {
      warn_seconds_ = std::max(warn_seconds_, message.warn_seconds());
    } else {
      MaybeWarned(*facts_, message.warn_seconds());
    }
    return;
  }
  // Every task says so, some when the answer is there already: each time the reason is not known until Slurm is asked.
  const gang::Terminating event{message.task(), message.signal(), slurm_ != nullptr};
  core_.Feed(event);
  if (!event.undecided) return;
  if (std::exchange(asking_why_, true)) {
    ask_again_ = message;
    return;
  }
  slurm_->JobInfo(Run(), Slurm::Sharing::kSkip, calls_.Here([this, message](const Result<SlurmJob>& answer) {
    Answered(message, answer);
  }));
}

// Slurm has been asked why it has sent SIGTERM.
void SlurmSide::Answered(const v1::Terminating& message, const Result<SlurmJob>& answer) {
  asking_why_ = false;
  const auto newer = std::exchange(ask_again_, std::nullopt);
  if (core_.lost()) return;
  // Where Slurm does not answer, what it said last decides.
  if (answer) facts_ = *answer;
  // The answer may be older than the newest signal, which may be a cancel's.
  if (answer && newer) return OnTerminating(*newer);
  if (facts_ && facts_->state == "RUNNING" && facts_->preempt_time > 0) {
    TakeFacts(*facts_);
    return;
  }
  if (facts_ && WarnedBefore(*facts_, message.warn_seconds())) return;
  if (facts_ && MaybeWarned(*facts_, message.warn_seconds())) return;
  // Unless it was this coordinator that had it requeued.
  if (facts_ && facts_->batch && facts_->restart_count > job_.restart_count &&
      core_.gang().state() != gang::State::kRequeueing)
    RequeuedBySlurm();
  core_.Feed(gang::Terminating{.task = message.task(),
                               .signal = message.signal(),
                               .may_run_again = !answer || MayRunAgain(*answer, job_)});
}

// Members tell of a warning again on each new link, also when its time is over: the limit has been extended, or Slurm is late. False: it
// was no warning that the gang knows.
bool SlurmSide::WarnedBefore(const SlurmJob& facts, uint32_t warn_seconds) {
  if (warn_seconds == 0 || facts.state != "RUNNING") return false;
  if (core_.gang().warned() != gang::CauseClass::kTimeLimit) return false;
  core_.Feed(gang::EndNear{gang::CauseClass::kTimeLimit, LeftToSaveMs(facts), true});
  return true;
}

// False: the signal was no warning, or the job may not be requeued.
bool SlurmSide::MaybeWarned(const SlurmJob& facts, uint32_t warn_seconds) {
  if (!IsWarning(facts, warn_seconds) || !MayBeRequeued(facts, job_)) return false;
  announced_ = gang::Announced::kTimeLimit;
  hooks_.note("warned",
              "Slurm has sent the members the job's --signal: the job is requeued when they have ended");
  core_.Feed(gang::EndNear{gang::CauseClass::kTimeLimit, LeftToSaveMs(facts), true});
  return true;
}

// By a preemption that leaves no time, or by somebody's scontrol requeue. Slurm has it wait for the lifetime of its
// credentials (BeginTime, two minutes) before it may run again.
void SlurmSide::RequeuedBySlurm() {
  hooks_.note("requeue", job_.options.requeue
                             ? "Slurm has requeued the job: it may run again as soon as there is room"
                             : "Slurm has requeued the job");
  if (!job_.options.requeue) return;
  slurm_->Requeue(Run(), {}, "", Slurm::Script::kRuns, [id = job_.Id()](const Status& done) {
    if (!done) spdlog::warn("gang {}: {}", id, done.error().message);
  });
}

void SlurmSide::Do(const gang::LoseNode& action) {
  if (slurm_ == nullptr) return;
  size_t present = 0;
  for (const gang::Gang::Node& node : core_.gang().nodes()) present += node.present ? 1 : 0;
  if (present < kMinWitnesses) {
    hooks_.note("slurm",
                fmt::format("{} is not set DOWN: there is no second observer", job_.hosts[action.node]));
    return;
  }
  // One that has a successor may still find a node silent, the successor's for example: only the newest tells Slurm. The store
  // knows who that is.
  const auto settled = std::make_shared<bool>(false);
  SetDownByQuorum(action, settled);
  SetDownIfNewest(action, settled);
}

void SlurmSide::SetDownIfNewest(const gang::LoseNode& action, const std::shared_ptr<bool>& settled) {
  hooks_.read_fence(calls_.Here([this, action, settled](const Result<Fence>& fence,
                                                        std::chrono::nanoseconds age) {
    if (core_.lost()) return;
    if (fence && core_.Overtaken(fence->term)) return;
    const bool silent = !fence && fence.error().code == Errc::kUnavailable;
    if (*settled || (silent && settings_.leases)) return;
    // Asked again are a store that has a newer term, which may be the term that this coordinator is raising, and a store whose
    // answer is old, because this host has stood still since it asked: another coordinator may have followed.
    const bool newer = fence && fence->term > core_.fence().term();
    if (newer || age > settings_.lease) {
      loop_.After(kRaising, calls_.Here([this, action, settled] { SetDownIfNewest(action, settled); }));
      return;
    }
    *settled = true;
    SetDown(action, fence ? Status() : Status(fence.error()));
  }));
}

// A node that is not DOWN when it boots again ends the step: who has most of the witnesses, who would have gone over to a
// successor by then, does not wait for a store that does not answer.
void SlurmSide::SetDownByQuorum(const gang::LoseNode& action, const std::shared_ptr<bool>& settled) {
  const auto due = loop_.Now() + 2 * settings_.lease;
  loop_.After(2 * settings_.lease, calls_.Here([this, action, settled, due] {
    if (*settled || core_.lost() || !core_.gang().nodes()[action.node].lost) return;
    // A host that has stood still does not know yet whom they follow.
    const bool late = loop_.Now() > due + settings_.lease;
    if (late || !core_.terms().quorum()) return SetDownByQuorum(action, settled);
    *settled = true;
    SetDown(action, {});
  }));
}

void SlurmSide::SetDown(const gang::LoseNode& action, const Status& newest) {
  const std::string& host = job_.hosts[action.node];
  const auto say = calls_.Here([this, host](const Status& done) {
    hooks_.note("slurm", done ? fmt::format("{} is set DOWN", host)
                              : fmt::format("{} is not set DOWN: {}", host, done.error().message));
  });
  if (!newest) return say(newest);
  if (!core_.gang().nodes()[action.node].lost)
    return hooks_.note("slurm", fmt::format("{} is not set DOWN: it is back", host));
  const gang::State state = core_.gang().state();
  // Should slurmd live there it kills the job's script then, and Slurm calls the job failed: the requeue does both at once.
  if (core_.gang().IsBatchHost(action.node) && state != gang::State::kFinished)
    return down_later_.push_back(action);
  const bool over = state == gang::State::kFinished || state == gang::State::kRequeueing;
  if (!over && job_.components.EndWith(action.node, down_)) {
    hooks_.note("slurm",
                fmt::format("{} is not set DOWN before the gang is over: Slurm would end the job, of which a "
                            "component has one node (it does when SlurmdTimeout is over)",
                            host));
    return down_later_.push_back(action);
  }
  down_.push_back(action.node);
  Comment(action.reason);
  slurm_->NodeDown(Run(), host, action.reason, say);
}

// srun waits for the tasks of a node that is dead until Slurm knows that it is.
void SlurmSide::Finished() {
  for (const gang::LoseNode& action : std::exchange(down_later_, {})) SetDown(action, {});
}

void SlurmSide::Do(const gang::DrainInSlurm& action) {
  if (slurm_ == nullptr) return;
  const std::string& host = job_.hosts[action.node];
  slurm_->NodeDrain(host, action.reason, calls_.Here([this, host](const Status& done) {
    hooks_.note("slurm", done ? fmt::format("{} is drained", host)
                              : fmt::format("{} is not drained: {}", host, done.error().message));
  }));
}

Status SlurmSide::OrderRequeue(const gang::RequeueJob& action) {
  if (slurm_ == nullptr) return Error{Errc::kUnavailable, "this daemon has no access to Slurm"};
  requeue_ = action;
  return {};
}

void SlurmSide::Requeue() {
  const gang::RequeueJob& action = requeue_;
  // Without its batch host Slurm would wait for what is left of the job on the others.
  if (core_.gang().BatchHostLost()) hooks_.tell_end("the job is requeued: " + action.reason);
  // The script's node is the last one that is set DOWN.
  std::vector<std::string> dead;
  for (const uint32_t node : action.dead)
    dead.insert(core_.gang().IsBatchHost(node) ? dead.end() : dead.begin(), job_.hosts[node]);
  const auto script = action.launch_failed           ? Slurm::Script::kMayHaveFailed
                      : core_.gang().BatchHostLost() ? Slurm::Script::kMayBeKilled
                                                     : Slurm::Script::kRuns;
  slurm_->Requeue(Run(), std::move(dead), action.reason, script, calls_.Here([this](const Status& done) {
    if (!done) core_.Feed(gang::RequeueFailed{done.error().message});
  }));
}

// For a comment slurmctld answers two questions, and a start that takes milliseconds would share the processors with them.
void SlurmSide::CommentOnFault(const std::string& text) {
  comment_ = text;
  comment_timer_.After(kStartsMeanwhile, [this] { SetComment(); });
}

void SlurmSide::Fed() {
  const gang::State state = core_.gang().state();
  if (state != gang::State::kStarting && state != gang::State::kRecovering) SetComment();
}

void SlurmSide::SetComment() {
  if (!comment_.empty() && !core_.lost()) Comment(std::exchange(comment_, ""));
}

void SlurmSide::Comment(const std::string& text) {
  comment_.clear();
  if (slurm_ == nullptr) return;
  slurm_->SetComment(Run(), "muster: " + text, calls_.Here([this](const Status& done) {
    if (done || std::exchange(comment_refused_, true)) return;
    spdlog::warn("gang {}: the job's comment in Slurm does not say what has happened: {}", job_.Id(),
                 done.error().message);
  }));
}

}  // namespace muster
