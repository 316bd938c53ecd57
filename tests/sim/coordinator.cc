#include "tests/sim/coordinator.h"

#include <algorithm>
#include <utility>

#include "daemon/gang/cause.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kRetry = 300 * kMs;
constexpr Nanos kLinger = 400 * kMs;

// Who must answer for an end: ExitOf.
void Classify(gang::Exit* exit) {
  exit->cause = gang::Classify({.status = exit->status, .node_lost = exit->supervisor_lost}, {}).cause;
}

}  // namespace

Coordinator::Coordinator(Daemon& daemon, Origin origin)
    : daemon_(daemon),
      world_(daemon.world),
      origin_(std::move(origin)),
      made_(daemon.world.now()),
      deadline_(daemon.world.now() + daemon.sim.options.join_timeout) {}

Coordinator::~Coordinator() {
  daemon_.EndLead();
}

void Coordinator::Post(Nanos delay, World::Task task) {
  daemon_.Post(delay, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
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
  // An answer that did not come says nothing: the next try finds that the term is this coordinator's already. One that an
  // earlier life of this daemon has taken is not.
  std::set<uint32_t> here;
  for (const auto& [node, link] : links_) here.insert(node);
  const auto change = [promised = origin_.promised, after = origin_.after_term, self = daemon_.host.index(),
                       made = made_, record = MakeRecord(), here,
                       seen = daemon_.sim.store.head().fence](Store::Head& head) {
    // What an earlier life of this daemon has asked for may come to the store late.
    if (!promised && head.exists && head.fence != seen) return false;
    if (promised && head.exists && head.fence.term == after + 1 && head.record.named == made) return true;
    if (promised && (!head.exists || head.fence.term != after)) return false;
    // It may be cut off, and still reach the store: the others go on without it.
    const auto& lost = head.record.memory.lost;
    if (!promised && head.exists && std::find(lost.begin(), lost.end(), self) != lost.end()) {
      const lease::WitnessSet& w = head.record.witnesses;
      const auto came = std::count_if(w.begin(), w.end(), [&](uint32_t node) { return here.contains(node); });
      if (static_cast<size_t>(came) < w.Blocking()) return false;
    }
    if (!head.exists) head.record = record;
    head.exists = true;
    head.record.coordinator = self;
    head.record.named = made;
    ++head.fence.term;
    return true;
  };
  daemon_.sim.store.Ask(daemon_.host.index(), change,
                        [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_)](
                            Store::Answer answer, const Store::Head& head) {
                          if (daemon.expired() || alive.expired()) return;
                          Post(0, [this, answer, head] { TakenOver(answer, head); });
                        });
}

void Coordinator::TakenOver(Store::Answer answer, const Store::Head& head) {
  if (answer != Store::Answer::kDone) {
    if (origin_.promised && answer == Store::Answer::kNone && ++tries_ < 4) {
      return Post(kRetry, [this] { TryTakeOver(); });
    }
    origin_.taken(false);
    if (origin_.promised) return StepDown(std::nullopt);
    if (world_.now() > deadline_) return StepDown(std::nullopt);
    return Post(kRetry, [this] { TryTakeOver(); });
  }
  fence_ = head.fence;
  latest_ = head.Latest();
  for (const auto& [step, fence] : head.checkpoints) {
    if (fence.generation == fence_.generation) committed_.insert(step);
  }
  origin_.taken(true);
  if (head.record.finish) {
    end_ = head.record.finish;
    deposed_ = true;
    Broadcast(fence_.term, *end_);
    return MaybeOver();
  }
  gang::Memory memory = head.record.memory;
  memory.running = head.record.state != gang::State::kJoining;
  memory.generation = fence_.generation;
  memory.requeueing = head.record.state == gang::State::kRequeueing;
  if (memory.running) {
    restore_ = head.record.restore;
    inherited_[fence_.generation] = restore_;
  }
  world_.Log("n{} coordinates, term {}, generation {}{}", daemon_.host.index(), fence_.term,
             fence_.generation, memory.running ? ", recovering" : "");
  daemon_.sim.invariants.Coordinates(fence_.term);
  gang_.emplace(daemon_.sim.options.gang, memory);
  durable_generation_ = fence_.generation;
  BeginLeases(memory.running ? &head.record : nullptr);
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
  if (deposed_ || std::exchange(asks_whose_, true)) return;
  daemon_.sim.store.Ask(
      daemon_.host.index(), [](Store::Head& /*head*/) { return true; },
      [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_)](Store::Answer answer,
                                                                      const Store::Head& head) {
        if (daemon.expired() || alive.expired()) return;
        Post(0, [this, answer, head] {
          StepDown(answer == Store::Answer::kDone ? std::optional(head.record.coordinator) : std::nullopt);
        });
      });
}

void Coordinator::StepDown(std::optional<uint32_t> successor) {
  if (deposed_) return;
  world_.Log("n{} steps down, term {}", daemon_.host.index(), fence_.term);
  daemon_.sim.invariants.StepsDown(daemon_.host.index(), successor);
  deposed_ = true;
  daemon_.EndLead();
  Broadcast(0, Elsewhere{successor});
  MaybeOver();
}

void Coordinator::MaybeOver() {
  const bool done = deposed_ || (gang_ && (gang_->state() == gang::State::kFinished));
  if (!done || !links_.empty()) return;
  Post(kLinger, [this] {
    if (!links_.empty()) return;
    daemon_.Post(0, [&daemon = daemon_, self = this] { daemon.ForgetCoordinator(self); });
  });
}

// ---- agents

void Coordinator::Attached(uint32_t node, const std::shared_ptr<Link>& link, const Register& registration) {
  if (const auto old = links_.find(node); old != links_.end() && old->second != link)
    old->second->Close(kCoordinatorEnd);
  links_[node] = link;
  registered_.erase(node);
  if (deposed_) {
    if (end_) return Send(node, fence_.term, *end_);
    return Send(node, 0, Elsewhere{});
  }
  if (!gang_) {
    std::erase_if(early_, [&](const auto& early) { return early.first == node; });
    early_.emplace_back(node, registration);
    return;
  }
  Registered(node, registration);
}

void Coordinator::Registered(uint32_t node, const Register& registration) {
  registered_.insert(node);
  if (registration.started_generation > 0 && !start_)
    inherited_.emplace(registration.started_generation, registration.started_restore);
  Attend(node);
  gang::NodeJoined joined{node, fmt::format("n{}", node), 20000, registration.members};
  for (gang::MemberInfo& member : joined.members) {
    if (member.exit) Classify(&*member.exit);
  }
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
      lead.NodeClosed(static_cast<lease::NodeIndex>(node), daemon_.host.Local());
    }
    Feed(gang::NodeLeft{node});
  }
  MaybeOver();
}

void Coordinator::Hear(uint32_t node, const Link* link, const AgentMessage& message) {
  const auto found = links_.find(node);
  if (deposed_ || found == links_.end() || found->second.get() != link) return;
  if (!gang_) {
    early_.emplace_back(node, message);
    return;
  }
  if (const auto* registration = std::get_if<Register>(&message)) return Registered(node, *registration);
  if (const auto* written = std::get_if<ShardWritten>(&message)) return OnShard(*written);
  gang::Event event = std::get<gang::Event>(message);
  if (auto* exited = std::get_if<gang::MemberExited>(&event)) Classify(&exited->exit);
  Feed(event);
}

void Coordinator::Send(uint32_t node, uint64_t term, decltype(CoordinatorMessage::kind) kind) {
  const auto found = links_.find(node);
  if (found == links_.end()) return;
  if (world_.Has(Bug::kLostStop) && std::holds_alternative<Stop>(kind) && world_.Chance(0.3)) return;
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
  Carry(actions);
  if (before == gang::State::kRecovering && gang_->state() != before) CommitWaiting();
  MaybeOver();
}

void Coordinator::Hear(const gang::CheckpointBad& bad) {
  if (bad.generation == gang_->generation() && committed_.contains(bad.step)) return;
  Feed(bad);
}

void Coordinator::Carry(const std::vector<gang::Action>& actions) {
  for (const gang::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Coordinator::Do(const gang::Note& action) {
  world_.Log("n{}: {}: {}", daemon_.host.index(), action.kind, action.text);
}

void Coordinator::Do(const gang::StartGeneration& action) {
  daemon_.sim.invariants.Starts(*gang_, fence_.term, action.durable);
  start_durable_ = action.durable || (start_durable_ && !to_start_.empty());
  to_start_.insert(action.nodes.begin(), action.nodes.end());
  MaybeSendStarts();
}

void Coordinator::MaybeSendStarts() {
  if (to_start_.empty() || rejecting_ > 0) return;
  if (start_durable_ && durable_generation_ < gang_->generation()) return;
  if (!start_ || start_->generation != gang_->generation() || start_term_ != fence_.term) BuildStart();
  for (const uint32_t node : std::exchange(to_start_, {})) Send(node, fence_.term, *start_);
}

void Coordinator::BuildStart() {
  const auto started = inherited_.find(gang_->generation());
  const bool again = start_ && start_->generation == gang_->generation();  // in a new term
  if (started != inherited_.end()) {
    restore_ = started->second;
  } else if (!again) {
    restore_ = latest_;
    pending_.clear();
    committed_.clear();
  }
  start_.emplace();
  start_term_ = fence_.term;
  start_->generation = gang_->generation();
  start_->active = gang_->active();
  for (const auto& member : gang_->members()) start_->ranks.push_back(member.rank);
  start_->restore = restore_;
  start_->content = restore_.value_or(UINT32_MAX);
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
  for (const uint32_t node : action.nodes) Send(node, fence_.term, Stop{action.generation});
  if (action.older) return;
  to_start_.clear();
  if (daemon_.lead() != nullptr) daemon_.lead()->SetStop(action.generation);
  lead_.stop_generation = std::max(lead_.stop_generation, action.generation);
  if (!world_.Has(Bug::kEarlyStart)) return;
  for (const uint32_t node : action.nodes) {
    Post(world_.Pick(0, 2) * kMs, [this, node, generation = action.generation] {
      if (Leads()) Feed(gang::NodeStopped{node, generation});
    });
  }
}

void Coordinator::Do(const gang::FinishGang& action) {
  to_finish_.insert(action.nodes.begin(), action.nodes.end());
  MaybeSendFinish();
}

// A success is one whoever says so. A gang is given up only by a coordinator that still has the record.
void Coordinator::MaybeSendFinish() {
  if (to_finish_.empty() || !(gang_->succeeded() || end_durable_)) return;
  for (const uint32_t node : std::exchange(to_finish_, {}))
    Send(node, fence_.term, Finish{gang_->succeeded()});
}

void Coordinator::Do(const gang::TellMembers& /*action*/) {
  Broadcast(fence_.term, Notify{});
}

void Coordinator::Do(const gang::SetTimer& action) {
  const uint64_t number = ++timer_number_;
  timers_[action.timer] = number;
  if (action.ms < 0) return;
  Post(action.ms * kMs, [this, number, timer = action.timer] {
    if (timers_[timer] == number) Feed(gang::TimerFired{timer});
  });
}

void Coordinator::Do(const gang::RequeueJob& /*action*/) {
  daemon_.sim.Requeue(
      [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_)](const std::string& why) {
        if (!daemon.expired() && !alive.expired()) Post(0, [this, why] { Feed(gang::RequeueFailed{why}); });
      });
}

void Coordinator::Do(const gang::RejectCheckpoint& action) {
  ++rejecting_;
  rejected_.insert(action.manifest);
  Queue(records_, [this, action](const std::function<void()>& done) { Reject(action, done); });
}

void Coordinator::Reject(const gang::RejectCheckpoint& bad, const std::function<void()>& done) {
  const auto change = [&store = daemon_.sim.store, bad, fence = fence_](Store::Head& head) {
    store.MarkBad(head, fence, bad.step, bad.manifest);
    return true;
  };
  daemon_.sim.store.Ask(daemon_.host.index(), change,
                        [this, daemon = daemon_.alive(), alive = std::weak_ptr(alive_), bad, done](
                            Store::Answer answer, const Store::Head& head) {
                          if (daemon.expired() || alive.expired()) return;
                          if (answer == Store::Answer::kNone)
                            return Post(kRetry, [this, bad, done] { Reject(bad, done); });
                          Post(0, [this, head, done] {
                            latest_.reset();
                            for (const auto& [good, fence] : head.checkpoints) {
                              if (!rejected_.contains(ManifestOf(good, fence))) latest_ = good;
                            }
                            --rejecting_;
                            MaybeSendStarts();
                            done();
                          });
                        });
}

}  // namespace muster::sim
