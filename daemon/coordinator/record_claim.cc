#include "daemon/coordinator/record_claim.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "base/clock.h"

namespace muster {
namespace {

using Tried = std::variant<RecordClaim::Taken, TakeOver::Elsewhere, TakeOver::Held, Error>;

constexpr auto kTakeoverRetry = std::chrono::milliseconds(1000);
constexpr auto kSwapRetry = std::chrono::milliseconds(300);
constexpr auto kMoreEnd = std::chrono::milliseconds(100);

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
  return RecordClaim::Taken{.head = {.fence = swap.to}, .record = std::move(record), .after = swap.after};
}

// On the thread that writes records.
Tried LookAndSwap(Catalog& catalog, const TakeOver& rules, const TakeOver::Try& now, const GangRecord& mine,
                  const std::function<bool()>& wanted) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(TakeOver::kSwapFor);
  const auto again = [&](const Error& why) {
    const bool may = MayPass(why) && wanted();
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
  auto* taken = std::get_if<RecordClaim::Taken>(&tried);
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
bool HasEnded(const std::vector<RecordClaim::Early>& early, size_t nodes) {
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

RecordClaim::RecordClaim(Loop& loop, std::shared_ptr<const BeatClock> clock, Worker& writer,
                         std::shared_ptr<Catalog> catalog, Slurm* slurm, const GangJob& job,
                         const CoordinatorCore& core, const NodeLinks& nodes, History& history,
                         Settings settings, Hooks hooks)
    : loop_(loop),
      clock_(std::move(clock)),
      writer_(writer),
      catalog_(std::move(catalog)),
      slurm_(slurm),
      job_(job),
      core_(core),
      nodes_(nodes),
      history_(history),
      settings_(std::move(settings)),
      hooks_(std::move(hooks)),
      timer_(loop),
      calls_(loop) {}

void RecordClaim::Begin(const TakeOver::Origin& origin) {
  const auto refusal = loop_.Now() + std::chrono::seconds(job_.options.join_seconds);
  rules_.emplace(origin, job_, settings_.self,
                 TakeOver::Until{.successor = clock_->Now() + 2 * settings_.silence_ms * 1'000'000,
                                 .refusal = Nanos(refusal)});
  Try();
}

void RecordClaim::TryLater(std::chrono::milliseconds pause) {
  timer_.After(pause, [this] {
    if (core_.lost()) return;
    if (!TakeOver::StillAsked(nodes_.Here())) return hooks_.step_down("", 0);
    if (!EndedBeforeItBegan()) Try();
  });
}

void RecordClaim::Try() {
  const lease::Nanos asked_at = clock_->Now();
  GangRecord mine = hooks_.record();
  mine.state = gang::ToString(gang::State::kJoining);
  auto done = calls_.Back([this, asked_at](Tried tried) {
    if (core_.lost()) return;
    if (auto* taken = std::get_if<Taken>(&tried)) {
      holder_.clear();
      waiting_.clear();
      taken->asked_at = asked_at;
      return hooks_.taken(*taken);
    }
    if (const auto* why = std::get_if<Error>(&tried)) return NotTaken(*why);
    if (const auto* held = std::get_if<TakeOver::Held>(&tried)) return AskHolder(held->record);
    const auto& elsewhere = std::get<TakeOver::Elsewhere>(tried);
    hooks_.step_down(elsewhere.coordinator, elsewhere.term);
  });
  writer_.Do([done = std::move(done), wanted = core_.fence().Mine(), catalog = catalog_, rules = *rules_,
              now = TakeOver::Try{asked_at, nodes_.Here()}, mine = std::move(mine),
              topology = settings_.topology] {
    if (topology) topology->Refresh();
    done(LookAndSwap(*catalog, rules, now, mine, wanted));
  });
}

void RecordClaim::NotTaken(const Error& why) {
  hooks_.not_taken();
  switch (rules_->NotTaken(why, Nanos(loop_.Now()))) {
    case TakeOver::Next::kStepDown:
      spdlog::warn("gang {}: not taken over: {}", job_.Id(), why.message);
      return hooks_.step_down("", 0);
    case TakeOver::Next::kRefuse:
      return hooks_.refuse(fmt::format("cannot take its record over in {}: {}", settings_.store, why.message),
                           TakeOver::IsJobOver(why));
    case TakeOver::Next::kAgain:
      spdlog::warn("gang {}: {}; trying again", job_.Id(), why.message);
      TryLater(kTakeoverRetry);
  }
}

// Slurm says whether the gang that has the name lives.
void RecordClaim::AskHolder(const GangRecord& holder) {
  history_.BeginNow();
  const JobRun own{job_.job_id, job_.restart_count, job_.uid, history_.created_ns() / 1'000'000'000};
  AskOfJobs(slurm_, own, holder, calls_.Here([this, holder](const Result<SlurmJob>& job) {
    if (!core_.lost()) HolderKnown(holder, job);
  }));
}

void RecordClaim::HolderKnown(const GangRecord& holder, const Result<SlurmJob>& job) {
  NameClaim& claim = rules_->claim();
  const NameClaim::Next next = claim.Heard(holder, job, Nanos(loop_.Now()));
  holder_ = claim.holder();
  if (EndedBeforeItBegan()) return;
  if (next == NameClaim::Next::kTake) {
    // Slurm's answers take their time: agents that have left meanwhile need no name.
    if (!TakeOver::StillAsked(nodes_.Here())) return hooks_.step_down("", 0);
    return Try();
  }
  if (next == NameClaim::Next::kRefuse) return hooks_.refuse(claim.Refusal(), false);
  if (next == NameClaim::Next::kWait && waiting_ != holder_) {
    waiting_ = holder_;
    history_.Add("waiting", waiting_, 0);
    nodes_.Broadcast(Waiting());
  }
  const bool waits = next == NameClaim::Next::kWait && claim.Patient();
  const std::chrono::nanoseconds pause(waits ? claim.Pause(static_cast<uint64_t>(RealtimeNs())) : 0);
  TryLater(waits ? std::chrono::ceil<std::chrono::milliseconds>(pause) : kTakeoverRetry);
}

// A gang that waits for its name ends with its tasks: nothing has run, and nothing is to be saved.
bool RecordClaim::EndedBeforeItBegan() {
  const bool waits = !holder_.empty() || rules_->claim().Patient();
  if (!waits || !HasEnded(early_, job_.hosts.size())) return false;
  hooks_.refuse(fmt::format("ended before it began{}{}", holder_.empty() ? "" : ": ", holder_), false);
  return true;
}

void RecordClaim::Registered(uint32_t node, std::shared_ptr<Link> link, const v1::Register& registration) {
  rules_->Asked(registration.term());
  // While the store is away, perhaps for hours, an agent connects again every few seconds: only what its newest link brings is kept.
  std::erase_if(early_, [&](const Early& early) { return early.node == node && early.link != link; });
  early_.push_back({node, std::move(link), {}});
  *early_.back().message.mutable_register_() = registration;
  NameClaim& claim = rules_->claim();
  const bool patient = claim.Patient();
  // Of a gang that has not begun: one that runs looks for another coordinator.
  if (registration.waited() && registration.term() == 0) claim.HasWaited();
  // A coordinator that was started anew says at once that it is there: Slurm's answers may take longer than the agents wait.
  if (claim.Patient() && !patient) {
    nodes_.Broadcast(Waiting());
  } else if (!waiting_.empty() || patient) {
    nodes_.Send(node, Waiting());
  }
}

void RecordClaim::Hear(uint32_t node, const v1::AgentMessage& message) {
  early_.push_back({node, nodes_.Of(node), message});
  if (message.has_terminating()) EndedBeforeItBegan();
  // All tasks may end at once, of thousands: they are counted a little later.
  if (message.has_exited() && timer_.waiting()) TryLater(kMoreEnd);
}

// Agents that hear this know that there is a coordinator, and let their tasks wait.
v1::CoordinatorMessage RecordClaim::Waiting() const {
  auto message = nodes_.NewMessage();
  v1::Waiting* waiting = message.mutable_waiting();
  if (!waiting_.empty())
    waiting->mutable_report()->set_text(fmt::format("muster: gang {}: waits: {}\n", job_.Id(), waiting_));
  return message;
}

}  // namespace muster
