#include "tests/sim/local_gang.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/planted.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

using gang::MemberState;

// As much shorter than the product's as Options::times.reconnect is: a coordinator waits that long for nodes that look for it.
constexpr CoordinatorSearch::Times kTimes{
    .longest_wait = 400 * kMs, .answer = 2'000 * kMs, .rotate = 1'500 * kMs};

// The same, in the supervisors' words and in the coordinator's.
wire::MemberState Wire(MemberState state) {
  return static_cast<wire::MemberState>(state);
}

gang::Exit ExitOf(const MemberEnd& end) {
  return {
      .status = end.status, .pid = end.pid, .supervisor_lost = end.supervisor_lost, .time_ns = end.time_ns};
}

MemberEnd EndOf(const std::optional<gang::Exit>& exit) {
  return exit ? MemberEnd{.status = exit->status, .pid = exit->pid, .time_ns = exit->time_ns} : MemberEnd{};
}

}  // namespace

LocalGang::LocalGang(Daemon& daemon, const Host::Saved& saved)
    : daemon_(daemon),
      host_(daemon.host),
      world_(daemon.world),
      core_(*this, daemon.sim.options.candidates, kTimes, daemon.host.index()) {
  for (size_t i = 0; i < host_.supervisors.size(); ++i) members_[TaskOf(i)];
  if (!saved.known) return;
  core_.Restore(saved.coordinator, saved.term, saved.started_generation, saved.started_restore);
  if (core_.orders().term() > 0) grace_until_ = saved.last_alive + daemon.sim.options.times.reconnect;
}

uint32_t LocalGang::TaskOf(size_t local) const {
  return static_cast<uint32_t>(host_.index() * host_.supervisors.size() + local);
}

size_t LocalGang::LocalOf(uint32_t task) const {
  return task - TaskOf(0);
}

void LocalGang::Save() {
  host_.saved.known = true;
  host_.saved.coordinator = core_.search().coordinator();
  host_.saved.term = core_.orders().term();
  host_.saved.started_generation = core_.orders().started();
  host_.saved.started_restore = core_.orders().from();
}

// ---- supervisors

void LocalGang::SupervisorsConnect() {
  for (auto& [task, member] : members_) {
    const Supervisor& s = host_.supervisors[LocalOf(task)];
    member.connected = s.alive;
    if (s.alive) {
      // A supervisor with processes that SIGKILL has not removed says that it has stopped only when it is asked again.
      member.Returned(Wire(s.unkillable ? MemberState::kExited : s.state), s.generation, EndOf(s.exit));
    } else if (member.SupervisorDied(core_.orders()) &&
               (s.state == MemberState::kStopped || s.generation == 0)) {
      // musterd sees soon that nothing is left. Of what is left Host::Swept says when it has been killed.
      daemon_.Post(20 * kMs, [this, &member, left = s.unkillable ? 1U : 0U] {
        member.LeftKilled(left);
        MaybeNodeStopped();
      });
    }
  }
  Save();
  knows_members_ = true;
  BeginAttendance();
  core_.Connect();
}

void LocalGang::SupervisorExecuted(size_t local, const Supervisor& says) {
  if (Of(local).Executed(says.generation, world_.now())) MaybeNodeExecuted();
}

void LocalGang::SupervisorExited(size_t local, const Supervisor& says) {
  if (!says.exit || !Of(local).Exited(says.generation, EndOf(says.exit))) return;
  SayEnd(TaskOf(local), Of(local));
  MaybeNodeExecuted();
}

void LocalGang::SupervisorExiting(size_t local, const Supervisor& says) {
  Member& member = Of(local);
  if (member.Exiting(says.alive ? says.generation : member.generation)) MaybeNodeStopped();
}

void LocalGang::SupervisorStopped(size_t local, const Supervisor& says) {
  Member& member = Of(local);
  const uint32_t left = says.unkillable ? 1 : 0;
  if (!says.alive) {
    member.LeftKilled(left);
  } else if (member.Stopped(says.generation, left, 0, core_.orders())) {
    SayEnd(TaskOf(local), member);
  }
  MaybeNodeStopped();
}

void LocalGang::SupervisorClosed(size_t local) {
  Member& member = Of(local);
  member.connected = false;
  if (finish_) return MaybeOver();
  member.SupervisorDied(core_.orders());
  SayEnd(TaskOf(local), member);
  MaybeNodeStopped();
}

void LocalGang::SayEnd(uint32_t task, const Member& member) {
  Up(gang::Event(gang::MemberExited{task, member.generation, ExitOf(*member.end)}));
}

// The gang is over on this node: nothing of it is left here.
void LocalGang::MaybeOver() {
  if (std::ranges::any_of(members_, [](const auto& item) { return item.second.connected; })) return;
  over_ = true;
  CloseLink("the gang is over on this node");
  core_.Lost();
  daemon_.EndAttendance();
}

void LocalGang::SupervisorSignalled(size_t local) {
  Up(gang::Event(gang::Terminating{TaskOf(local), SIGTERM}));
}

void LocalGang::Saved(size_t local, uint64_t generation, uint64_t step) {
  const Supervisor& s = host_.supervisors[local];
  if (s.generation != generation || Of(local).stop.ordered) return;
  if (!start_ || s.generation != start_->generation) {
    // A musterd that was started again is told by libmuster when it knows the generation.
    if (s.executing && s.saving)
      daemon_.Post(200 * kMs, [this, local, generation, step] { Saved(local, generation, step); });
    return;
  }
  const ShardWritten written{s.rank, s.generation, step};
  Up(gang::Event(gang::Progressed{step}));
  unacknowledged_[{s.rank, step}] = written;
  Up(written);
}

// ---- the link

void LocalGang::Dial(uint32_t node, uint64_t number) {
  world_.Log("n{} registers with n{}, term {}", host_.index(), node, term());
  link_ = daemon_.sim.network.Connect(host_.index(), node);
  Link::End& end = link_->ends[kAgentEnd];
  end.open = true;
  end.message = [this, alive = daemon_.alive(), number](Message message) {
    if (alive.expired()) return;
    daemon_.Run([this, number, message = std::get<CoordinatorMessage>(std::move(message))] {
      if (core_.IsNewest(number) || MUSTER_PLANTED(stale_term)) FromCoordinator(message);
    });
  };
  end.closed = [this, alive = daemon_.alive(), number] {
    if (alive.expired()) return;
    daemon_.Run([this, number] {
      if (!core_.IsNewest(number)) return;
      link_.reset();
      core_.Lost();
    });
  };
  daemon_.sim.Dial(link_);
}

void LocalGang::CloseLink(const std::string& why) {
  if (link_ && why.empty() && MUSTER_PLANTED(stale_term)) {
    old_links_.push_back(link_);
  } else if (link_) {
    link_->Close(kAgentEnd);
  }
  link_.reset();
}

void LocalGang::WakeForLink(std::optional<lease::Nanos> at) {
  if (!at) return;
  daemon_.Post(*at - world_.now(), [this, at] {
    if (core_.search().due() == at) core_.LinkDue();
  });
}

bool LocalGang::FoundBad(size_t local, gang::CheckpointBad bad) {
  if (!start_ || start_->generation != bad.generation) return false;
  bad.task = TaskOf(local);
  world_.Log("n{}.{}: the checkpoint of step {} does not verify", host_.index(), local, bad.step);
  host_.saved.checkpoint_bad = bad;
  Up(gang::Event(std::move(bad)));
  return true;
}

void LocalGang::Register() {
  sim::Register message;
  message.node = host_.index();
  message.term = term();
  message.coordinator = coordinator();
  message.started_generation = core_.orders().started();
  message.started_restore = core_.orders().from();
  message.checkpoint_bad = host_.saved.checkpoint_bad;
  for (const auto& [task, member] : members_) {
    gang::MemberInfo& info = message.members.emplace_back();
    info.task = task;
    info.local_id = static_cast<uint32_t>(LocalOf(task));
    info.state = static_cast<MemberState>(member.state);
    info.generation = member.generation;
    info.unkillable = member.unkillable;
    if (member.end) info.exit = ExitOf(*member.end);
  }
  Up(std::move(message));
  for (const auto& [key, written] : unacknowledged_) Up(written);
}

void LocalGang::Up(AgentMessage message) {
  if (link_) link_->Send(kAgentEnd, std::move(message));
}

void LocalGang::FromCoordinator(const CoordinatorMessage& message) {
  if (!core_.Heard(message.term)) return;
  if (message.term != 0) daemon_.sim.invariants.Obeys(host_, message.term);
  std::visit([this](const auto& m) { On(m); }, message.kind);
}

// ---- orders

void LocalGang::StartMembers(const sim::Start& start) {
  if (!start_ || start_->generation != start.generation) unacknowledged_.clear();
  start_ = start;
  if (start.ranks[TaskOf(0)]) core_.Started(start.generation, start.restore);
  for (auto& [task, member] : members_) StartMember(task, member);
}

// A daemon without a lease waits for it.
void LocalGang::StartLater() {
  world_.Log("n{}: a start waits for the lease", host_.index());
  daemon_.Post(50 * kMs, [this] { core_.StartDue(); });
}

void LocalGang::StartMember(uint32_t task, Member& member) {
  const auto rank = start_->ranks[task];
  if (!member.connected || !rank || !member.Start(start_->generation)) return;
  host_.StartMember(LocalOf(task), {.generation = start_->generation,
                                    .term = term(),
                                    .content = start_->content,
                                    .rank = *rank,
                                    .from = start_->restore});
}

void LocalGang::StopMembers(bool last_words) {
  for (auto& [task, member] : members_) {
    if (!core_.orders().MayRun(member.generation)) StopMember(task, member, last_words);
  }
  MaybeNodeStopped();
}

void LocalGang::StopMember(uint32_t task, Member& member, bool last_words) {
  last_words &= daemon_.sim.options.gang.last_words_ms > 0;
  if (member.connected && member.Stop(last_words))
    host_.StopMember(LocalOf(task), member.generation, last_words);
}

void LocalGang::On(const Finish& /*finish*/) {
  daemon_.sim.invariants.Ends();
  finish_ = true;
  core_.Finish();
  for (const auto& [task, member] : members_) {
    if (member.connected) host_.FinishMember(LocalOf(task));
  }
}

void LocalGang::On(const Committed& committed) {
  std::erase_if(unacknowledged_, [&](const auto& item) {
    return item.second.step == committed.step && item.second.generation == committed.generation;
  });
  for (size_t i = 0; i < members_.size(); ++i) {
    host_.TellCommitted(i, committed.generation, committed.step, committed.good);
  }
}

void LocalGang::MaybeNodeExecuted() {
  if (!start_ || !start_->ranks[TaskOf(0)]) return;
  const auto said = SayExecuted(members_, start_->generation, &core_.orders());
  if (!said) return;
  for (const uint32_t task : said->tasks)
    Up(gang::Event(gang::MemberExecuted{task, start_->generation, said->time_ns}));
}

void LocalGang::MaybeNodeStopped() {
  const auto said = SayStopped(members_, members_.size(), &core_.orders());
  if (!said) return;
  if (said->exiting) return Up(gang::Event(gang::NodeExiting{host_.index(), core_.orders().stopped()}));
  daemon_.SetStopped(core_.orders().stopped());
  Up(gang::Event(gang::NodeStopped{host_.index(), core_.orders().stopped(), 20000, said->unkillable}));
}

// ---- the lease

// With the first supervisor here: supervisors whose musterd was restarted are beaten, or fenced, from the start. The lease itself
// begins when a coordinator has answered.
void LocalGang::BeginAttendance() {
  if (daemon_.Attending()) return;
  lease::AgentSettings settings;
  settings.times = daemon_.sim.options.times;
  settings.gang = 1;
  settings.self = static_cast<lease::NodeIndex>(host_.index());
  for (const uint32_t node : daemon_.sim.options.candidates)
    settings.candidates.push_back(static_cast<lease::NodeIndex>(node));
  settings.first_sequence = static_cast<uint64_t>(world_.now()) + 1;
  settings.promised = host_.saved.promised;
  settings.grace_until = grace_until_;
  daemon_.Attend(std::move(settings), term() > 0);
}

bool LocalGang::MayStart() const {
  return daemon_.MayStart();
}

void LocalGang::NewTerm(bool stopped) {
  daemon_.sim.invariants.Obeys(host_, core_.orders().term());
  if (stopped) start_.reset();
}

void LocalGang::Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
                       lease::Source source) {
  daemon_.Follow(term, coordinator, witnesses, source);
}

void LocalGang::Claimed(uint64_t term, bool taken) {
  daemon_.Claimed(term, taken);
}

void LocalGang::OnLease(const lease::Event& event, const lease::WitnessSet& closed) {
  if (over_) return;
  switch (event.kind) {
    case lease::EventKind::kAttended:
      world_.Log("n{} is attended, term {}", host_.index(), event.term);
      host_.Attended();
      grace_until_ = 0;
      return core_.LeaseBegins();
    case lease::EventKind::kFence:
      core_.Fence();
      return daemon_.Fenced();
    case lease::EventKind::kClaim:
      return core_.Claim(event.term);
    case lease::EventKind::kTakeOver:
      return core_.TakeOver(event.term, closed);
    case lease::EventKind::kSuccessor:
      return core_.Successor(event.term, event.node);
    case lease::EventKind::kStopOrdered:
      return core_.StopOrdered(event.term, event.generation);
    default:
      return;
  }
}

uint64_t LocalGang::FenceMembers() {
  const uint64_t newest = NewestWithProgram(members_);
  world_.Log("n{}: fenced", host_.index());
  if (newest == 0) return 0;
  daemon_.sim.invariants.Cause(newest);
  for (auto& [task, member] : members_) {
    if (member.Fence(world_.now())) SayEnd(task, member);
  }
  return newest;
}

// ---- the record

void LocalGang::TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) {
  world_.Log("n{} takes over after term {}", host_.index(), term);
  Coordinator::Origin origin;
  origin.promised = true;
  origin.after_term = term;
  origin.closed = closed;
  origin.taken = [this, alive = daemon_.alive(), term, claim](bool taken) {
    if (!alive.expired()) core_.TakenOver(term, claim, taken);
  };
  daemon_.TakeOver(std::move(origin));
}

void LocalGang::ReadRecord() {
  daemon_.Post(world_.Pick(1'500, 2'500) * kMs, [this] {
    const auto answer = [this, alive = daemon_.alive()](Store::Answer done, const Store::Head& head) {
      if (alive.expired()) return;
      daemon_.Run([this, done, head] {
        if (done != Store::Answer::kDone) return static_cast<void>(core_.Learned({}));
        core_.Learned(AgentCore::Recorded{daemon_.sim.NodeOf(head.record->coordinator), head.fence.term,
                                          lease::WitnessSet::Of(head.record->witnesses)});
      });
    };
    daemon_.sim.store.Ask(
        host_.index(), [](Store::Head& /*head*/) { return true; }, answer);
  });
}

}  // namespace muster::sim
