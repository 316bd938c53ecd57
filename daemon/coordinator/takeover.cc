// How a coordinator comes to its gang's record, and how it ends when another has it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/record_of_gang.h"
#include "daemon/slurm/slurm.h"
#include "daemon/slurm/topology.h"

namespace muster {

// The record is this coordinator's.
struct TakenRecord {
  GangHead head;
  std::optional<GangRecord> record;  // that was there
  TakeOver::Swap::After after = TakeOver::Swap::After::kNothing;
};

namespace {

using Tried = std::variant<TakenRecord, TakeOver::Elsewhere, TakeOver::Held, Error>;

constexpr auto kTakeoverRetry = std::chrono::milliseconds(1000);
constexpr auto kSwapRetry = std::chrono::milliseconds(300);

TakeOver::Nanos Nanos(Loop::Time time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// One look, and one swap by what it has found. `go_on`: whether to try again after an error of the store.
Tried LookAndSwapOnce(Catalog& catalog, const TakeOver& rules, const TakeOver::Try& now,
                      const GangRecord& mine, const std::function<bool(const Error& why)>& go_on) {
  Result<GangHead> head = catalog.Load();
  if (!head && head.error().code != Errc::kNotFound) return head.error();
  if (!head) head = GangHead();
  // A foreign or damaged record is reported and left alone: nothing is written over it.
  std::optional<GangRecord> record;
  if (!head->record.empty()) {
    auto decoded = GangRecord::Decode(head->record);
    if (!decoded) return decoded.error();
    record = *std::move(decoded);
  }
  auto decision = rules.Decide({head->fence, record ? &*record : nullptr}, now, mine);
  if (auto* elsewhere = std::get_if<TakeOver::Elsewhere>(&decision)) return std::move(*elsewhere);
  if (auto* held = std::get_if<TakeOver::Held>(&decision)) return std::move(*held);
  if (auto* why = std::get_if<Error>(&decision)) return std::move(*why);
  auto& swap = std::get<TakeOver::Swap>(decision);
  swap.record.updated_ns = RealtimeNs();
  const std::string text = swap.record.Encode();
  Status swapped;
  if (rules.ForSure()) {
    swapped = catalog.AdvanceForSure(swap.from, swap.to, text, go_on, head->record);
  } else if (auto taken = catalog.TakeOver(text, mine.IndexEntry(), &*head); !taken) {
    swapped = taken.error();
  }
  // Whoever has changed the record meanwhile may be the coordinator before, with a last word: that is no refusal.
  if (!swapped && swapped.error().code == Errc::kConflict)
    return Error{Errc::kUnavailable, "the record has changed meanwhile: " + swapped.error().message};
  if (!swapped) return swapped.error();
  return TakenRecord{{.fence = swap.to}, std::move(record), swap.after};
}

// On the thread that writes records.
Tried LookAndSwap(Catalog& catalog, const TakeOver& rules, const TakeOver::Try& now, const GangRecord& mine,
                  const std::function<bool()>& alive) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(TakeOver::kSwapFor);
  const auto again = [&](const Error& why) {
    const bool may = MayPass(why) && alive();
    if (may) std::this_thread::sleep_for(kSwapRetry);
    return may;
  };
  // A promise is about the term, and that is looked at again.
  const auto in_time = [&](const Error& why) {
    return rules.ForSure() && std::chrono::steady_clock::now() <= end && again(why);
  };
  Tried tried = LookAndSwapOnce(catalog, rules, now, mine, in_time);
  while (std::holds_alternative<Error>(tried) && in_time(std::get<Error>(tried)))
    tried = LookAndSwapOnce(catalog, rules, now, mine, in_time);
  auto* taken = std::get_if<TakenRecord>(&tried);
  if (taken == nullptr) return tried;
  // The coordinator before may have committed between the look and the swap. After the swap only this coordinator can commit, so the list
  // that is read now stays true.
  Result<GangHead> head = catalog.Load();
  while (!head && again(head.error())) head = catalog.Load();
  if (!head) return head.error();
  if (head->fence == taken->head.fence) {
    taken->head = *std::move(head);
    return tried;
  }
  auto newer = GangRecord::Decode(head->record);
  if (newer && newer->IsOf(rules.job()) && newer->term == head->fence.term)
    return TakeOver::Elsewhere{newer->coordinator, newer->term};
  return Error{Errc::kConflict, "another has taken the record since"};
}

// That Slurm knows nothing of the holder's job means something only if it knows of this gang's own, which is the same user's: Slurm is
// asked about that one only then.
void AskOfJobs(Slurm* slurm, const JobRun& own, const GangRecord& holder, const Slurm::JobDone& done) {
  if (slurm == nullptr) return done(Error{Errc::kUnavailable, "this daemon has no access to Slurm"});
  const JobRun run{holder.job_id, holder.restart_count, holder.uid, holder.created_ns / 1'000'000'000};
  slurm->JobInfo(run, Slurm::Sharing::kSkip, [slurm, own, done](const Result<SlurmJob>& holders) {
    if (holders || holders.error().code != Errc::kNotFound) return done(holders);
    slurm->JobInfo(own, Slurm::Sharing::kSkip, [done, holders](const Result<SlurmJob>& found) {
      done(found ? holders : Error{Errc::kUnavailable, found.error().message});
    });
  });
}

// Whether Slurm has ended a gang of so many nodes: by SIGTERM, or all its tasks. `early`: what its agents have said before it could begin.
bool HasEnded(const auto& early, size_t nodes) {
  std::set<uint32_t> registered;
  std::map<uint32_t, bool> ended;  // by task
  for (const auto& [node, link, message] : early) {
    if (message.has_terminating() && message.terminating().signal() == SIGTERM) return true;
    if (message.has_register_()) registered.insert(node);
    for (const v1::Member& member : message.register_().members()) ended[member.task()] = member.has_exited();
    if (message.has_exited()) ended[message.exited().task()] = true;
  }
  return registered.size() == nodes &&
         std::ranges::all_of(ended, [](const auto& task) { return task.second; });
}

}  // namespace

// Agents that hear this know that there is a coordinator, and let their tasks wait. `holder`: "" before it is known again.
v1::CoordinatorMessage Waiting(v1::CoordinatorMessage message, const std::string& holder) {
  v1::Waiting* waiting = message.mutable_waiting();
  if (!holder.empty())
    waiting->mutable_report()->set_text(fmt::format("muster: gang {}: waits: {}\n", message.gang(), holder));
  return message;
}

void Coordinator::Begin(Origin origin, std::function<void()> over) {
  origin_ = std::move(origin);
  over_ = std::move(over);
  const auto refusal = loop_.Now() + std::chrono::seconds(job_.options.join_seconds);
  take_over_.emplace(origin_, job_, self_,
                     TakeOver::Until{.successor = clock_->Now() + 2 * config_.silence_ms * 1'000'000,
                                     .refusal = Nanos(refusal)});
  TryTakeOver();
}

void Coordinator::TryTakeOver(std::chrono::milliseconds pause) {
  if (pause.count() > 0) {
    loop_.Cancel(takeover_timer_);
    takeover_timer_ = loop_.After(pause, [this] {
      takeover_timer_ = 0;
      if (!TakeOver::StillAsked(nodes_.Here())) return StepDown("");
      if (EndedBeforeItBegan()) return;
      TryTakeOver();
    });
    return;
  }
  asked_at_ = clock_->Now();
  GangRecord mine = Record();
  mine.state = gang::ToString(gang::State::kJoining);
  records_.writer().Do([weak = weak_from_this(), catalog = catalog_, rules = *take_over_,
                        now = TakeOver::Try{asked_at_, nodes_.Here()}, mine = std::move(mine),
                        topology = job_.options.order_by_topology ? context_.topology : nullptr,
                        &loop = loop_] {
    if (topology) topology->Refresh();  // for Settings()
    Tried tried = LookAndSwap(*catalog, rules, now, mine, [&weak] { return !weak.expired(); });
    loop.Post([weak, tried = std::move(tried)]() mutable {
      const auto self = weak.lock();
      if (!self || self->core_.lost()) return;
      if (auto* taken = std::get_if<TakenRecord>(&tried)) return self->Begin(std::move(*taken));
      if (const auto* why = std::get_if<Error>(&tried)) return self->NotTaken(*why);
      if (const auto* held = std::get_if<TakeOver::Held>(&tried)) return self->AskHolder(held->record);
      const auto& elsewhere = std::get<TakeOver::Elsewhere>(tried);
      self->StepDown(elsewhere.coordinator, elsewhere.term);
    });
  });
}

void Coordinator::NotTaken(const Error& why) {
  if (origin_.taken) origin_.taken(false);
  switch (take_over_->NotTaken(why, Nanos(loop_.Now()))) {
    case TakeOver::Next::kStepDown:
      spdlog::warn("gang {}: not taken over: {}", job_.Id(), why.message);
      return StepDown("");
    case TakeOver::Next::kRefuse:
      return Refuse(fmt::format("cannot take its record over in {}: {}", store_->Describe(), why.message),
                    TakeOver::IsJobOver(why));
    case TakeOver::Next::kAgain:
      spdlog::warn("gang {}: {}; trying again", job_.Id(), why.message);
      TryTakeOver(kTakeoverRetry);
  }
}

// Slurm says whether the gang that has the name lives.
void Coordinator::AskHolder(const GangRecord& holder) {
  history_.BeginNow();
  const JobRun own{job_.job_id, job_.restart_count, job_.uid, history_.created_ns() / 1'000'000'000};
  AskOfJobs(context_.slurm, own, holder, [weak = weak_from_this(), holder](const Result<SlurmJob>& job) {
    const auto self = weak.lock();
    if (!self || self->core_.lost()) return;
    NameClaim& claim = self->take_over_->claim();
    const NameClaim::Next next = claim.Heard(holder, job, Nanos(self->loop_.Now()));
    self->holder_ = claim.holder();
    if (self->EndedBeforeItBegan()) return;
    if (next == NameClaim::Next::kTake) {
      // Slurm's answers take their time: agents that have left meanwhile need no name.
      if (!TakeOver::StillAsked(self->nodes_.Here())) return self->StepDown("");
      return self->TryTakeOver();
    }
    if (next == NameClaim::Next::kRefuse) return self->Refuse(claim.Refusal());
    if (next == NameClaim::Next::kWait && self->waiting_ != self->holder_) {
      self->waiting_ = self->holder_;
      self->AddHistory("waiting", self->waiting_);
      self->nodes_.Broadcast(Waiting(self->nodes_.NewMessage(), self->waiting_));
    }
    const bool waits = next == NameClaim::Next::kWait && claim.Patient();
    const std::chrono::nanoseconds pause(waits ? claim.Pause(static_cast<uint64_t>(RealtimeNs())) : 0);
    self->TryTakeOver(waits ? std::chrono::ceil<std::chrono::milliseconds>(pause) : kTakeoverRetry);
  });
}

// A gang that waits for its name ends with its tasks: nothing has run, and nothing is to be saved.
bool Coordinator::EndedBeforeItBegan() {
  const bool waits = !holder_.empty() || take_over_->claim().Patient();
  if (!waits || !HasEnded(early_, job_.hosts.size())) return false;
  Refuse(fmt::format("ended before it began{}{}", holder_.empty() ? "" : ": ", holder_));
  return true;
}

void Coordinator::Begin(TakenRecord taken) {
  const GangHead& head = taken.head;
  core_.Take(head.fence, GoodOf(head), head.latest);
  holder_.clear();
  waiting_.clear();
  if (origin_.taken) origin_.taken(true);
  if (taken.after == TakeOver::Swap::After::kEnd) return OverAlready(*taken.record);
  const GangRecord* previous = taken.after == TakeOver::Swap::After::kGang ? &*taken.record : nullptr;
  if (previous != nullptr) history_.GoOn(*previous);
  slurm_.Take(history_.created_ns());
  // The former coordinator may have ended before it told Slurm.
  if (previous != nullptr && Is(*previous, gang::State::kStarting)) slurm_.CommentOnFault(previous->first_cause);
  if (taken.record) {
    const bool same_gang = taken.record->IsOf(job_);
    if (taken.record->IsOfStep(job_)) hangs_.Remember(taken.record->starts, same_gang);
  }
  checkpoints_.Take(head, history_.created_ns());
  const Fence& fence = core_.fence().fence();
  spdlog::info("gang {}: this node coordinates, term {}, generation {}{}", job_.Id(), fence.term,
               fence.generation, previous != nullptr && TermsOf(*previous) ? ", recovering" : "");
  lease_.Take(origin_.key);
  core_.Begin(Settings(), previous, {origin_.promised, origin_.closed, asked_at_, clock_->Now()},
              nodes_.Here());
  AddHistory("coordinator", fmt::format("{} coordinates, term {}", self_, core_.fence().term()));
  core_.Go();
  lease_.LeadBehind(records_.writer());
  slurm_.Begin();
  checkpoints_.Collect();
  const auto take = [this](const Early& early) {
    if (!early.message.has_register_()) return Message(early.node, early.message);
    Registered(early.node, early.message.register_());
  };
  // Nodes whose links have ended meanwhile come first. They have registered, so the gang loses or replaces them, and does not take them
  // for nodes that were dead when the step was launched.
  std::map<uint32_t, std::vector<Early>> gone;
  std::vector<Early> here;
  for (Early& early : std::exchange(early_, {})) {
    auto& those = nodes_.Of(early.node) ? here : gone[early.node];
    those.push_back(std::move(early));
  }
  for (const auto& [node, said] : gone) {
    for (const Early& early : said) take(early);
    Left(node);
  }
  for (const Early& early : here) {
    if (nodes_.Of(early.node) == early.link) take(early);  // else this coordinator has closed it
  }
}

// The agents have missed the end, with the coordinator that was before this one: their supervisors may leave.
void Coordinator::OverAlready(const GangRecord& record) {
  end_ = FinishOf(record.succeeded, record.finish_cause, record.finish_code);
  auto message = nodes_.NewMessage();
  *message.mutable_finish() = *end_;
  nodes_.Broadcast(message);
  core_.Lose();
  MaybeOver();
}

void Coordinator::Refuse(const std::string& why, bool job_is_over) {
  const std::string text = fmt::format("gang {}: {}", job_.Id(), why);
  // What a requeued job has left behind is refused in the course of things.
  spdlog::log(job_is_over ? spdlog::level::warn : spdlog::level::err, "{}", text);
  refusal_ = text;
  job_is_over_ = job_is_over;
  auto message = nodes_.NewMessage();
  message.mutable_refused()->set_text(text);
  message.mutable_refused()->set_job_is_over(job_is_over_);
  nodes_.Broadcast(message);
  core_.Lose();
  lease_.End();
  MaybeOver();
}

void Coordinator::StepDown(const std::string& successor, uint64_t term) {
  if (core_.lost()) return;
  spdlog::warn("gang {}: {} coordinates now; this coordinator of term {} steps down", job_.Id(),
               successor.empty() ? "another node" : successor, core_.fence().term());
  core_.Lose();
  lease_.End();
  auto message = nodes_.NewMessage();
  message.set_term(term);
  const auto node = job_.NodeOf(successor);
  message.mutable_elsewhere()->set_known(node.has_value());
  message.mutable_elsewhere()->set_node(node.value_or(0));
  nodes_.Broadcast(message);
  MaybeOver();
}

}  // namespace muster
