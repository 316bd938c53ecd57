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
constexpr Nanos kAbsent = 2'200 * kMs;

// Who must answer for an end: ExitOf.
void Classify(gang::Exit* exit) {
  exit->cause = gang::Classify({.status = exit->status, .node_lost = exit->supervisor_lost}, {}).cause;
}

std::vector<CoordinatorCore::Listed> ListedIn(const Store::Head& head) {
  std::vector<CoordinatorCore::Listed> listed;
  for (const auto& [step, fence] : head.checkpoints)
    listed.push_back({step, fence.generation, ManifestOf(step, fence)});
  return listed;
}

}  // namespace

Coordinator::Coordinator(Daemon& daemon, Origin origin)
    : daemon_(daemon),
      world_(daemon.world),
      origin_(std::move(origin)),
      take_over_(origin_, daemon.sim.options.gang_job, daemon.sim.options.gang_job.hosts[daemon.host.index()],
                 {.successor = daemon.host.Local() + 2 * daemon.sim.options.times.silence,
                  .refusal = daemon.host.Local() + daemon.sim.options.join_timeout}),
      core_({*this, *this, *this, *this, *this},
            Terms(static_cast<lease::NodeIndex>(daemon.host.index()), daemon.sim.options.candidates,
                  {.after_loss = daemon.sim.options.times.silence,
                   .to_grow = daemon.sim.options.times.reconnect}),
            true) {}

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

// As LookAndSwap of daemon/coordinator/record_claim.cc.
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
  core_.Take(head.fence, ListedIn(head), head.Latest());
  origin_.taken(true);
  if (after == TakeOver::Swap::After::kEnd) {
    end_ = Finish{head.record->succeeded};
    core_.Lose();
    Broadcast(term(), *end_);
    return MaybeOver();
  }
  const GangRecord* previous = after == TakeOver::Swap::After::kGang ? head.record.get() : nullptr;
  world_.Log("n{} coordinates, term {}, generation {}{}", daemon_.host.index(), term(),
             core_.fence().fence().generation,
             previous != nullptr && TermsOf(*previous) ? ", recovering" : "");
  daemon_.sim.invariants.Coordinates(term(), origin_.promised);
  core_.Begin(daemon_.sim.options.gang, previous,
              {.promised = origin_.promised,
               .closed = origin_.closed,
               .asked_at = asked_at_,
               .taken_at = daemon_.host.Local()},
              Here());
  core_.Go();
  // The lease begins when the record that names its witnesses is written.
  Queue(records_, [this](const std::function<void()>& done) {
    core_.Lead();
    done();
  });
  Post(world_.Pick(20, 200) * kMs, [this] { Feed(daemon_.sim.options.job); });
  for (const auto& [node, message] : std::exchange(early_, {})) {
    if (links_.contains(node)) Hear(node, links_[node].get(), message);
  }
}

void Coordinator::FindSuccessor(const std::string& /*why*/) {
  Look([this](Store::Answer answer, const Store::Head& head) {
    StepDown(answer == Store::Answer::kDone ? std::optional(daemon_.sim.NodeOf(head.record->coordinator))
                                            : std::nullopt);
  });
}

void Coordinator::StepDown(std::optional<uint32_t> successor, uint64_t term) {
  if (core_.lost()) return;
  world_.Log("n{} steps down, term {}", daemon_.host.index(), this->term());
  daemon_.sim.invariants.StepsDown(daemon_.host.index(), successor);
  core_.Lose();
  daemon_.EndLead();
  Broadcast(term, Elsewhere{successor});
  MaybeOver();
}

void Coordinator::MaybeOver() {
  if (!core_.over() || !links_.empty()) return;
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
  if (core_.lost()) {
    if (end_) return Send(node, term(), *end_);
    return Send(node, 0, Elsewhere{});
  }
  if (!core_.began()) {
    take_over_.Asked(registration.term);
    std::erase_if(early_, [&](const auto& early) { return early.first == node; });
    early_.emplace_back(node, registration);
    return;
  }
  Registered(node, registration);
}

void Coordinator::Registered(uint32_t node, const Register& registration) {
  registered_.insert(node);
  core_.Registered(node, registration.started_generation, registration.started_restore);
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
  core_.Left(node);
  MaybeOver();
}

void Coordinator::Hear(uint32_t node, const Link* link, const AgentMessage& message) {
  const auto found = links_.find(node);
  if (core_.lost() || found == links_.end() || found->second.get() != link) return;
  if (!core_.began()) {
    early_.emplace_back(node, message);
    return;
  }
  if (const auto* registration = std::get_if<Register>(&message)) return Registered(node, *registration);
  if (const auto* written = std::get_if<ShardWritten>(&message)) {
    Shard shard;
    shard.rank = written->rank;
    return core_.ShardWritten({.generation = written->generation, .step = written->step}, shard);
  }
  gang::Event event = std::get<gang::Event>(message);
  if (auto* exited = std::get_if<gang::MemberExited>(&event)) Classify(&exited->exit);
  if (auto* stopped = std::get_if<gang::NodeStopped>(&event)) stopped->unsent = core_.starts().Waits();
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

void Coordinator::Handled(const gang::Event& event, gang::State before,
                          const std::vector<gang::Action>& actions) {
  const gang::State state = gang().state();
  daemon_.sim.coverage.Gang(before, event, state, actions);
  if (before != state)
    world_.Log("n{}: the gang is {}, generation {}", daemon_.host.index(), gang::ToString(state),
               gang().generation());
  daemon_.sim.invariants.Judged(gang());
  const auto* timer = std::get_if<gang::TimerFired>(&event);
  const bool planned = std::holds_alternative<gang::CheckpointCommitted>(event) ||
                       (timer != nullptr && timer->timer == gang::Timer::kGrace);
  if (planned && before != state && state == gang::State::kStopping)
    daemon_.sim.invariants.StopsAsPlanned(gang(), term());
  const auto started = std::ranges::find_if(
      actions, [](const auto& action) { return std::holds_alternative<gang::StartGeneration>(action); });
  if (started != actions.end())
    daemon_.sim.invariants.Starts(gang(), term(), std::get<gang::StartGeneration>(*started).durable,
                                  daemon_.host.index());
  for (const gang::Action& action : actions) {
    if (const auto* bad = std::get_if<gang::RejectCheckpoint>(&action))
      daemon_.sim.invariants.Rejected(bad->manifest);
  }
}

void Coordinator::Fed(gang::State before, uint64_t /*generation*/) {
  const gang::State state = gang().state();
  if (state == before || before == gang::State::kRequeueing) return;
  if (state == gang::State::kRequeueing || (state == gang::State::kFinished && !gang().succeeded()))
    daemon_.sim.invariants.GivesUp(gang(), term());
}

gang::CheckpointBad Coordinator::Judged(gang::CheckpointBad bad) const {
  bad.saved_anew = core_.saves().IsCommitted(bad.generation, bad.step);
  return bad;
}

void Coordinator::Do(const gang::Note& action) {
  world_.Log("n{}: {}: {}", daemon_.host.index(), action.kind, action.text);
  if (action.kind == "fault" || action.kind == "planned")
    daemon_.sim.invariants.Tells(gang(), term(), action.generation, action.text);
}

void Coordinator::SendStart(const std::set<uint32_t>& nodes) {
  for (const uint32_t node : nodes) Send(node, term(), *start_);
}

void Coordinator::BuildStart(const Starts::Prepared& prepared) {
  if (!prepared.inherited && !prepared.again)
    daemon_.sim.invariants.Chosen(term(), gang().generation(), restore());
  start_.emplace();
  start_->generation = gang().generation();
  start_->active = gang().active();
  for (const auto& member : gang().members()) start_->ranks.push_back(member.rank);
  start_->restore = restore();
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

void Coordinator::SendStop(const gang::StopGeneration& action) {
  for (const uint32_t node : action.nodes) Send(node, term(), Stop{action.generation, action.last_words});
  if (action.older || !MUSTER_PLANTED(early_start)) return;
  for (const uint32_t node : action.nodes) {
    Post(world_.Pick(0, 2) * kMs, [this, node, generation = action.generation] {
      if (Leads()) Feed(gang::NodeStopped{node, generation});
    });
  }
}

void Coordinator::AwaitEndRecord() {
  Post(kEndDurable, [this, number = ++end_waits_] {
    const Nanos beat = daemon_.sim.options.times.beat;
    Post(beat, [this, number, late = world_.now() + 2 * beat] {
      if (number != end_waits_) return;
      if (world_.now() <= late && Leads()) daemon_.sim.invariants.NoRecordOfEnd();
      core_.EndRecordLate(world_.now() > late);
    });
  });
}

void Coordinator::SendFinish(const std::set<uint32_t>& nodes) {
  for (const uint32_t node : nodes) Send(node, term(), Finish{gang().succeeded()});
}

void Coordinator::Do(const gang::TellMembers& /*action*/) {
  Broadcast(term(), Notify{});
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
    if (!MUSTER_PLANTED(down_by_former)) {
      if (core_.Overtaken(head.fence.term)) return;
      // The store may have a newer term because this coordinator is raising its own: the store is asked again when that is over.
      if (head.fence.term > term()) return Post(kRetry, [this, action] { Do(action); });
    }
    if (gang().nodes()[node].lost) daemon_.sim.invariants.SetDown(node, term(), newest);
  });
}

void Coordinator::Requeue() {
  daemon_.sim.Requeue(
      [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_)](const std::string& why) {
        if (!daemon.expired() && !alive.expired()) Post(0, [this, why] { Feed(gang::RequeueFailed{why}); });
      });
}

void Coordinator::MarkBad(const gang::RejectCheckpoint& bad, bool later) {
  if (later) return Post(kRetry, [this, bad] { MarkBad(bad, false); });
  Queue(records_, [this, bad, used = core_.fence().fence()](const std::function<void()>& done) {
    Mark(bad, used, done);
  });
}

void Coordinator::Mark(const gang::RejectCheckpoint& bad, const Fence& used,
                       const std::function<void()>& done) {
  const auto change = [&store = daemon_.sim.store, bad, used](Store::Head& head) {
    return store.MarkBad(head, used, bad.step, bad.manifest);
  };
  Ask(change, [this, bad, used, done](Store::Answer answer, const Store::Head& head) {
    if (answer == Store::Answer::kNone)
      return Post(kRetry, [this, bad, used, done] { Mark(bad, used, done); });
    const bool marked = answer == Store::Answer::kDone;
    core_.Marked(used, bad, marked ? Status() : Error{Errc::kConflict, "the record has another fence"},
                 ListedIn(head));
    done();
  });
}

// ---- leases

Nanos Coordinator::Now() const {
  return daemon_.host.Local();
}

std::set<uint32_t> Coordinator::Here() const {
  std::set<uint32_t> here;
  for (const auto& [node, link] : links_) here.insert(node);
  return here;
}

bool Coordinator::HasLease() const {
  return daemon_.lead() != nullptr;
}

void Coordinator::Lead(const lease::LeadSettings& terms) {
  lease::LeadSettings settings = terms;
  settings.times = daemon_.sim.options.times;
  settings.gang = 1;
  settings.nodes = gang().nodes().size();
  settings.first_sequence = static_cast<uint64_t>(world_.now()) + 1;
  world_.Log("n{} leads, term {}: {} watched, {} witnesses, {} former sets", daemon_.host.index(), term(),
             settings.watched.size(), settings.witnesses.size(), settings.former.size());
  daemon_.Lead(settings);
  for (const uint32_t node : registered_) Attend(node);
}

// Nodes that have not joined: dead ones do not answer.
void Coordinator::ProbeAbsent() {
  if (!Leads() || gang().state() != gang::State::kJoining) return;
  gang::AbsentProbed probed;
  bool certain = true;
  bool any = false;
  for (uint32_t node = 0; node < gang().nodes().size(); ++node) {
    const Host& host = *daemon_.sim.hosts[node];
    if (gang().nodes()[node].joined || gang().nodes()[node].lost) continue;
    any = true;
    const bool silent =
        host.crashed() || host.Frozen() || !daemon_.sim.network.Joined(host.index(), daemon_.host.index());
    if (!silent) {
      silent_since_.erase(node);
    } else if (world_.now() - silent_since_.emplace(node, world_.now()).first->second >= kAbsent) {
      probed.dead.push_back(node);
    } else {
      certain = false;
    }
  }
  if (!any) return;
  if (certain) Feed(probed);
  Post(500 * kMs, [this, began = term()] {
    if (Leads() && term() == began) ProbeAbsent();
  });
}

// A node of an earlier term that has not been heard: where the port refuses, the host lives and its musterd does not, and
// its supervisors wait for `reconnect`.
void Coordinator::Probe() {
  if (daemon_.lead() == nullptr || daemon_.lead()->term() != term()) return;
  const std::vector<lease::NodeIndex> nodes = core_.terms().Unheard(gang());
  for (const lease::NodeIndex node : nodes) {
    const Host& host = *daemon_.sim.hosts[node];
    if (host.crashed() || host.Frozen() || host.daemon() != nullptr) continue;
    if (!daemon_.sim.network.Joined(host.index(), daemon_.host.index())) continue;
    core_.Refuses(node);
  }
  if (nodes.empty()) return;
  Post(100 * kMs, [this, began = term()] {
    if (Leads() && term() == began) Probe();
  });
}

void Coordinator::Attend(uint32_t node) {
  if (daemon_.lead() == nullptr || !links_.contains(node)) return;
  daemon_.lead()->NodeAttached(static_cast<lease::NodeIndex>(node), daemon_.host.Local());
  Send(node, term(), Attended{daemon_.host.index(), core_.terms().lead().witnesses});
}

void Coordinator::OnLease(const lease::Event& event) {
  if (!Leads() || (event.term != term() && event.kind != lease::EventKind::kDeposed)) return;
  switch (event.kind) {
    case lease::EventKind::kHeard:
      return core_.Heard(event.node);
    case lease::EventKind::kSilent:
      daemon_.sim.invariants.Silent(event.node, term(), daemon_.host);
      return core_.Silent({event.node, world_.now()});
    case lease::EventKind::kStopped:
      return core_.Stopped(event.node, event.generation);
    case lease::EventKind::kConfirmInStore:
      return AskTerm();
    case lease::EventKind::kTermSpent:
      return core_.RaiseTerm();
    case lease::EventKind::kDeposed:
      return core_.SeenTerm(event.term);
    case lease::EventKind::kQuorum:
      return core_.SetQuorum(true);
    case lease::EventKind::kLostQuorum:
      return core_.SetQuorum(false);
    default:
      return;
  }
}

void Coordinator::CloseLink(uint32_t node) {
  if (const auto link = links_.extract(node)) link.mapped()->Close(kCoordinatorEnd);
}

void Coordinator::NodeAttached(uint32_t node) {
  if (HasLease()) daemon_.lead()->NodeAttached(static_cast<lease::NodeIndex>(node), Now());
}

void Coordinator::NodeClosed(uint32_t node) {
  if (HasLease()) daemon_.lead()->NodeClosed(static_cast<lease::NodeIndex>(node), Now());
}

void Coordinator::NodeRemoved(uint32_t node) {
  if (HasLease()) daemon_.lead()->NodeRemoved(static_cast<lease::NodeIndex>(node));
}

void Coordinator::SetStop(uint64_t generation) {
  if (HasLease()) daemon_.lead()->SetStop(generation);
}

void Coordinator::StoreConfirmed(Nanos asked_at) {
  if (!HasLease()) return;
  lease::Output out;
  daemon_.lead()->StoreConfirmed(asked_at, Now(), &out);
  daemon_.Pump(&out);
}

void Coordinator::Depose(uint64_t term) {
  if (!HasLease()) return;
  lease::Output out;
  daemon_.lead()->Depose(term, &out);
  daemon_.Pump(&out);
}

void Coordinator::RaiseAt(std::optional<Nanos> at) {
  const uint64_t number = ++raise_timer_;
  if (!at) return;
  Post(*at - Now(), [this, number] {
    if (number == raise_timer_) core_.MaybeRaise();
  });
}

}  // namespace muster::sim
