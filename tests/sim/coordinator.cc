#include "tests/sim/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/planted.h"
#include "daemon/coordinator/record_of_gang.h"
#include "daemon/gang/cause.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kRetry = 300 * kMs;
constexpr Nanos kLinger = 400 * kMs;
constexpr Nanos kEndDurable = 3'000 * kMs;

// Who must answer for an end: ExitOf.
void Classify(gang::Exit* exit) {
  exit->cause = gang::Classify({.status = exit->status, .node_lost = exit->supervisor_lost}, {}).cause;
}

}  // namespace

Coordinator::Coordinator(Daemon& daemon, Origin origin)
    : daemon_(daemon),
      world_(daemon.world),
      origin_(std::move(origin)),
      take_over_(origin_, daemon.sim.options.gang_job, daemon.sim.options.gang_job.hosts[daemon.host.index()],
                 {.successor = daemon.host.Local() + 2 * daemon.sim.options.times.silence,
                  .refusal = daemon.host.Local() + daemon.sim.options.join_timeout}),
      terms_(
          static_cast<lease::NodeIndex>(daemon.host.index()), daemon.sim.options.candidates,
          {.after_loss = daemon.sim.options.times.silence, .to_grow = daemon.sim.options.times.reconnect}) {}

Coordinator::~Coordinator() {
  daemon_.EndLead();
}

void Coordinator::Post(Nanos delay, World::Task task) {
  daemon_.Post(delay, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void Coordinator::Ask(std::function<bool(Store::Head&)> change,
                      std::function<void(Store::Answer, const Store::Head&)> then) {
  daemon_.sim.store.Ask(daemon_.host.index(), std::move(change),
                        [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_),
                         then = std::move(then)](Store::Answer answer, const Store::Head& head) {
                          if (daemon.expired() || alive.expired()) return;
                          Post(0, [then, answer, head] { then(answer, head); });
                        });
}

void Coordinator::Look(std::function<void(Store::Answer, const Store::Head&)> then) {
  Ask([](Store::Head& /*head*/) { return true; }, std::move(then));
}

void Coordinator::Queue(Thread& thread, Work work) {
  thread.queue.push_back(std::move(work));
  if (!thread.working) RunQueue(thread);
}

void Coordinator::RunQueue(Thread& thread) {
  thread.working = !thread.queue.empty();
  if (!thread.working) return;
  const Work work = std::move(thread.queue.front());
  thread.queue.pop_front();
  work([this, &thread] { Post(0, [this, &thread] { RunQueue(thread); }); });
}

// ---- taking over

void Coordinator::TryTakeOver() {
  asked_at_ = daemon_.host.Local();
  Look([this, now = TakeOver::Try{asked_at_, Here()}, mine = Record()](Store::Answer answer,
                                                                       const Store::Head& head) {
    if (answer == Store::Answer::kNone) return NotTaken({Errc::kUnavailable, "the store does not answer"});
    const TakeOver::Decision decision = take_over_.Decide({head.fence, head.record.get()}, now, mine);
    if (const auto* elsewhere = std::get_if<TakeOver::Elsewhere>(&decision))
      return StepDown(daemon_.sim.NodeOf(elsewhere->coordinator), elsewhere->term);
    if (const auto* why = std::get_if<Error>(&decision)) return NotTaken(*why);
    Swap(std::get<TakeOver::Swap>(decision), head);
  });
}

// As Coordinator::LookAndSwap.
void Coordinator::Swap(const TakeOver::Swap& swap, const Store::Head& head) {
  const auto go_on = [this, end = daemon_.host.Local() + TakeOver::kSwapFor] {
    return take_over_.ForSure() && daemon_.host.Local() <= end;
  };
  const auto swapped = [this, after = swap.after](Store::Answer answer, Nanos /*asked*/,
                                                  const Store::Head& now) {
    if (answer == Store::Answer::kNone) return NotTaken({Errc::kUnavailable, "the store does not answer"});
    if (answer == Store::Answer::kConflict) return NotTaken({Errc::kConflict, "somebody else was faster"});
    Taken(now, after);
  };
  AdvanceForSure({swap.from, swap.to, std::make_shared<GangRecord>(swap.record), head.record}, go_on,
                 swapped);
}

void Coordinator::NotTaken(const Error& why) {
  world_.Log("n{}: {}", daemon_.host.index(), why.message);
  origin_.taken(false);
  // The product ends the members of a gang that is refused. Here their agents look further.
  if (take_over_.NotTaken(why, daemon_.host.Local()) != TakeOver::Next::kAgain) return StepDown(std::nullopt);
  Post(kRetry, [this] {
    if (!TakeOver::StillAsked(Here())) return StepDown(std::nullopt);
    TryTakeOver();
  });
}

void Coordinator::Taken(const Store::Head& head, TakeOver::Swap::After after) {
  fence_.Take(head.fence);
  starts_.SetNewest(head.Latest());
  for (const auto& [step, fence] : head.checkpoints) {
    if (fence.generation == fence_.fence().generation) saves_.CommittedBefore(fence.generation, step);
  }
  origin_.taken(true);
  if (after == TakeOver::Swap::After::kEnd) {
    end_ = Finish{head.record->succeeded};
    fence_.Lose();
    Broadcast(fence_.term(), *end_);
    return MaybeOver();
  }
  gang::Memory memory;
  std::optional<Terms::Found> terms;
  if (after == TakeOver::Swap::After::kGang) {
    memory = MemoryOf(*head.record);
    terms = TermsOf(*head.record);
    Inherit(*head.record, &starts_);
  }
  world_.Log("n{} coordinates, term {}, generation {}{}", daemon_.host.index(), fence_.term(),
             fence_.fence().generation, memory.running ? ", recovering" : "");
  daemon_.sim.invariants.Coordinates(fence_.term(), origin_.promised);
  gang_.emplace(daemon_.sim.options.gang, memory);
  BeginLeases(terms);
  Carry(gang_->Begin());
  // Behind the record that names the witnesses.
  Queue(records_, [this](const std::function<void()>& done) {
    if (Leads()) Lead();
    done();
  });
  Post(world_.Pick(20, 200) * kMs, [this] {
    if (Leads()) Feed(daemon_.sim.options.job);
  });
  for (const auto& [node, message] : std::exchange(early_, {})) {
    if (links_.contains(node)) Hear(node, links_[node].get(), message);
  }
}

void Coordinator::Deposed() {
  if (!fence_.AskWhose()) return;
  Look([this](Store::Answer answer, const Store::Head& head) {
    StepDown(answer == Store::Answer::kDone ? std::optional(daemon_.sim.NodeOf(head.record->coordinator))
                                            : std::nullopt);
  });
}

void Coordinator::StepDown(std::optional<uint32_t> successor, uint64_t term) {
  if (fence_.lost()) return;
  world_.Log("n{} steps down, term {}", daemon_.host.index(), fence_.term());
  daemon_.sim.invariants.StepsDown(daemon_.host.index(), successor);
  fence_.Lose();
  daemon_.EndLead();
  Broadcast(term, Elsewhere{successor});
  MaybeOver();
}

void Coordinator::MaybeOver() {
  const bool done =
      fence_.lost() || (gang_ && !fence_.raising() && (gang_->state() == gang::State::kFinished));
  if (!done || !links_.empty()) return;
  // Behind what is still to be done, the record before all.
  const auto forget = [this](const std::function<void()>& done) {
    if (links_.empty()) daemon_.Post(0, [&daemon = daemon_, self = this] { daemon.ForgetCoordinator(self); });
    done();
  };
  Post(kLinger, [this, forget] {
    if (!links_.empty()) return;
    Queue(records_, [this, forget](const std::function<void()>& done) {
      Queue(committer_, forget);
      done();
    });
  });
}

// ---- agents

void Coordinator::Attached(uint32_t node, const std::shared_ptr<Link>& link, const Register& registration) {
  if (const auto old = links_.find(node); old != links_.end() && old->second != link)
    old->second->Close(kCoordinatorEnd);
  links_[node] = link;
  registered_.erase(node);
  if (fence_.lost()) {
    if (end_) return Send(node, fence_.term(), *end_);
    return Send(node, 0, Elsewhere{});
  }
  if (!gang_) {
    take_over_.Asked(registration.term);
    std::erase_if(early_, [&](const auto& early) { return early.first == node; });
    early_.emplace_back(node, registration);
    return;
  }
  Registered(node, registration);
}

void Coordinator::Registered(uint32_t node, const Register& registration) {
  registered_.insert(node);
  starts_.Inherit(registration.started_generation, registration.started_restore);
  Attend(node);
  gang::NodeJoined joined{node, fmt::format("n{}", node), 20000, registration.members};
  for (gang::MemberInfo& member : joined.members) {
    if (member.exit) Classify(&*member.exit);
  }
  if (registration.checkpoint_bad) joined.checkpoint_bad = Judged(*registration.checkpoint_bad);
  Feed(joined);
}

void Coordinator::Detached(uint32_t node, const Link* link) {
  const auto found = links_.find(node);
  if (found == links_.end() || found->second.get() != link) return;
  links_.erase(found);
  if (Leads()) {
    // Whatever ended it: musterd may have gone in that moment.
    if (daemon_.lead() != nullptr) {
      lease::CoordinatorLease& lead = *daemon_.lead();
      if (!MUSTER_PLANTED(closed_not_counted))
        lead.NodeClosed(static_cast<lease::NodeIndex>(node), daemon_.host.Local());
    }
    Feed(gang::NodeLeft{node});
    if (gang_->nodes()[node].ended) terms_.Wait(daemon_.host.Local());
  }
  MaybeOver();
}

void Coordinator::Hear(uint32_t node, const Link* link, const AgentMessage& message) {
  const auto found = links_.find(node);
  if (fence_.lost() || found == links_.end() || found->second.get() != link) return;
  if (!gang_) {
    early_.emplace_back(node, message);
    return;
  }
  if (const auto* registration = std::get_if<Register>(&message)) return Registered(node, *registration);
  if (const auto* written = std::get_if<ShardWritten>(&message)) return OnShard(*written);
  gang::Event event = std::get<gang::Event>(message);
  if (auto* exited = std::get_if<gang::MemberExited>(&event)) Classify(&exited->exit);
  if (auto* stopped = std::get_if<gang::NodeStopped>(&event)) stopped->unsent = starts_.Waits();
  if (auto* bad = std::get_if<gang::CheckpointBad>(&event)) *bad = Judged(std::move(*bad));
  Feed(event);
}

void Coordinator::Send(uint32_t node, uint64_t term, decltype(CoordinatorMessage::kind) kind) {
  const auto found = links_.find(node);
  if (found == links_.end()) return;
  if (MUSTER_PLANTED(lost_stop) && std::holds_alternative<Stop>(kind) && world_.Chance(0.3)) return;
  found->second->Send(kCoordinatorEnd, CoordinatorMessage{term, std::move(kind)});
}

void Coordinator::Broadcast(uint64_t term, const decltype(CoordinatorMessage::kind)& kind) {
  const auto links = links_;
  for (const auto& [node, link] : links) Send(node, term, kind);
}

// ---- the state machine

void Coordinator::Feed(const gang::Event& event) {
  if (!Leads()) return;
  const gang::State before = gang_->state();
  const auto actions = gang_->Handle(event);
  daemon_.sim.coverage.Gang(before, event, gang_->state(), actions);
  if (before != gang_->state())
    world_.Log("n{}: the gang is {}, generation {}", daemon_.host.index(), gang::ToString(gang_->state()),
               gang_->generation());
  daemon_.sim.invariants.Judged(*gang_);
  const auto* timer = std::get_if<gang::TimerFired>(&event);
  const bool planned = std::holds_alternative<gang::CheckpointCommitted>(event) ||
                       (timer != nullptr && timer->timer == gang::Timer::kGrace);
  if (planned && before != gang_->state() && gang_->state() == gang::State::kStopping)
    daemon_.sim.invariants.StopsAsPlanned(*gang_, fence_.term());
  Carry(actions);
  const gang::State state = gang_->state();
  const bool requeued = before == gang::State::kRequeueing;
  if (state != before && !requeued &&
      (state == gang::State::kRequeueing || (state == gang::State::kFinished && !gang_->succeeded())))
    daemon_.sim.invariants.GivesUp(*gang_, fence_.term());
  if (before == gang::State::kRecovering && gang_->state() != before) CommitWaiting();
  MaybeRaise();
  MaybeOver();
}

gang::CheckpointBad Coordinator::Judged(gang::CheckpointBad bad) const {
  bad.saved_anew = saves_.IsCommitted(bad.generation, bad.step);
  return bad;
}

void Coordinator::Carry(const std::vector<gang::Action>& actions) {
  for (const gang::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Coordinator::Do(const gang::Note& action) {
  world_.Log("n{}: {}: {}", daemon_.host.index(), action.kind, action.text);
  if (action.kind == "fault" || action.kind == "planned")
    daemon_.sim.invariants.Tells(*gang_, fence_.term(), action.generation, action.text);
}

void Coordinator::Do(const gang::StartGeneration& action) {
  daemon_.sim.invariants.Starts(*gang_, fence_.term(), action.durable, daemon_.host.index());
  starts_.Order(action.nodes, action.durable);
  if (starts_.MayPrepare()) PrepareStart();
  MaybeSendStarts();
}

void Coordinator::MaybeSendStarts() {
  const std::set<uint32_t> due = starts_.Due(fence_, gang_->generation());
  if (due.empty()) return;
  if (PrepareStart()) Do(gang::Persist{});
  for (const uint32_t node : due) Send(node, fence_.term(), *start_);
}

bool Coordinator::PrepareStart() {
  const Starts::Prepared prepared = starts_.Prepare(gang_->generation(), fence_.term());
  if (prepared.anew) BuildStart(prepared);
  return prepared.anew;
}

void Coordinator::BuildStart(const Starts::Prepared& prepared) {
  if (!prepared.inherited && !prepared.again) {
    saves_.BeginGeneration();
    daemon_.sim.invariants.Chosen(fence_.term(), gang_->generation(), starts_.from());
  }
  start_.emplace();
  start_->generation = gang_->generation();
  start_->active = gang_->active();
  for (const auto& member : gang_->members()) start_->ranks.push_back(member.rank);
  start_->restore = starts_.from();
  start_->content = start_->restore.value_or(UINT32_MAX);
  for (const uint32_t node : start_->active) start_->content = start_->content * 1'000'003 + node;
}

// The node that leads may die meanwhile, or stand still for longer than anybody waits.
void Coordinator::Do(const gang::TestLinks& action) {
  gang::LinksTested tested{.node = action.nodes.front(), .test = action.test};
  if (world_.Chance(0.2)) {
    tested.error = "it cannot be started";
  } else {
    tested.verdict.emplace();
    if (world_.Chance(0.5))
      tested.verdict->bad.push_back({action.nodes[world_.Pick(0, action.nodes.size() - 1)], "slow"});
  }
  Post((world_.Chance(0.1) ? 3'000 : world_.Pick(20, 800)) * kMs, [this, tested] {
    if (Leads() && links_.contains(tested.node)) Feed(tested);
  });
}

void Coordinator::Do(const gang::StopGeneration& action) {
  for (const uint32_t node : action.nodes)
    Send(node, fence_.term(), Stop{action.generation, action.last_words});
  if (action.older) return;
  starts_.Stop();
  if (daemon_.lead() != nullptr) daemon_.lead()->SetStop(action.generation);
  terms_.SetStop(action.generation);
  if (!MUSTER_PLANTED(early_start)) return;
  for (const uint32_t node : action.nodes) {
    Post(world_.Pick(0, 2) * kMs, [this, node, generation = action.generation] {
      if (Leads()) Feed(gang::NodeStopped{node, generation});
    });
  }
}

void Coordinator::Do(const gang::FinishGang& action) {
  if (ending_.Finish(action.succeeded && !fence_.raising(), action.nodes)) WaitForEndRecord();
  MaybeSendFinish();
}

void Coordinator::WaitForEndRecord() {
  Post(kEndDurable, [this, number = ++end_waits_] {
    // A host that has stood still hears within a beat that the nodes do not follow it any more.
    const Nanos beat = daemon_.sim.options.times.beat;
    Post(beat, [this, number, late = world_.now() + 2 * beat] {
      if (number != end_waits_) return;
      if (!ending_.WaitedLongEnough(world_.now() > late)) return WaitForEndRecord();
      if (!Leads()) return;
      daemon_.sim.invariants.NoRecordOfEnd();
      MaybeSendFinish();
      MaybeRequeue();
    });
  });
}

void Coordinator::MaybeSendFinish() {
  for (const uint32_t node : ending_.DueFinish(terms_.quorum() || gang_->generation() == 0))
    Send(node, fence_.term(), Finish{gang_->succeeded()});
}

void Coordinator::Do(const gang::TellMembers& /*action*/) {
  Broadcast(fence_.term(), Notify{});
}

void Coordinator::Do(const gang::SetTimer& action) {
  const uint64_t number = ++timer_number_;
  timers_[action.timer] = number;
  if (action.ms < 0) return;
  Post(action.ms * kMs, [this, number, timer = action.timer] {
    if (timers_[timer] == number) Feed(gang::TimerFired{timer});
  });
}

// Only the newest coordinator tells Slurm, and the store knows who that is.
void Coordinator::Do(const gang::LoseNode& action) {
  Look([this, action, asked = daemon_.host.Local(), newest = daemon_.sim.store.head().fence.term](
           Store::Answer answer, const Store::Head& head) {
    const uint32_t node = action.node;
    if (!Leads() || answer != Store::Answer::kDone) return;
    // A host that has stood still since has an answer that may not be true any more.
    if (daemon_.host.Local() - asked > daemon_.sim.options.times.silence) return Do(action);
    if (fence_.Seen(head.fence.term) && !MUSTER_PLANTED(down_by_former)) return Deposed();
    // Whose the newer term is will be known when this coordinator's own has begun, or has not.
    if (head.fence.term > fence_.term() && !MUSTER_PLANTED(down_by_former))
      return Post(kRetry, [this, action] { Do(action); });
    if (gang_->nodes()[node].lost) daemon_.sim.invariants.SetDown(node, fence_.term(), newest);
  });
}

void Coordinator::Do(const gang::RequeueJob& /*action*/) {
  ending_.Requeue();
  WaitForEndRecord();
  MaybeRequeue();
}

void Coordinator::MaybeRequeue() {
  if (!ending_.DueRequeue(terms_.quorum() || gang_->generation() == 0)) return;
  daemon_.sim.Requeue(
      [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_)](const std::string& why) {
        if (!daemon.expired() && !alive.expired()) Post(0, [this, why] { Feed(gang::RequeueFailed{why}); });
      });
}

void Coordinator::Do(const gang::RejectCheckpoint& action) {
  daemon_.sim.invariants.Rejected(action.manifest);
  starts_.Reject(action.manifest);
  Queue(records_, [this, action](const std::function<void()>& done) { Reject(action, done); });
}

void Coordinator::Reject(const gang::RejectCheckpoint& bad, const std::function<void()>& done) {
  const auto change = [&store = daemon_.sim.store, bad, fence = fence_.fence()](Store::Head& head) {
    store.MarkBad(head, fence, bad.step, bad.manifest);
    return true;
  };
  Ask(change, [this, bad, done](Store::Answer answer, const Store::Head& head) {
    if (answer == Store::Answer::kNone) return Post(kRetry, [this, bad, done] { Reject(bad, done); });
    Starts::Step newest;
    for (const auto& [good, fence] : head.checkpoints) {
      if (!starts_.IsRejected(ManifestOf(good, fence))) newest = good;
    }
    starts_.RejectOver(newest);
    MaybeSendStarts();
    done();
  });
}

}  // namespace muster::sim
