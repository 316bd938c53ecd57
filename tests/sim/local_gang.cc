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

// Of a member whose supervisor is dead: what is left of its program is to be killed.
MemberState Ended(MemberState before) {
  const bool ran = before == MemberState::kRunning || before == MemberState::kExited;
  return ran ? MemberState::kExited : MemberState::kStopped;
}

}  // namespace

LocalGang::LocalGang(Daemon& daemon, const Host::Saved& saved)
    : daemon_(daemon),
      host_(daemon.host),
      world_(daemon.world),
      members_(daemon.host.supervisors.size()),
      search_(daemon.sim.options.candidates, kTimes) {
  if (!saved.known) return;
  search_.Restore(saved.coordinator);
  orders_.Restore(saved.term, saved.started_generation, saved.started_restore);
  if (orders_.term() > 0) grace_until_ = saved.last_alive + daemon.sim.options.times.reconnect;
}

LocalGang::~LocalGang() = default;

uint32_t LocalGang::TaskOf(size_t local) const {
  return static_cast<uint32_t>(host_.index() * members_.size() + local);
}

void LocalGang::Remember() {
  host_.saved.known = true;
  host_.saved.coordinator = search_.coordinator();
  host_.saved.term = orders_.term();
  host_.saved.started_generation = orders_.started();
  host_.saved.started_restore = orders_.from();
}

// ---- supervisors

void LocalGang::SupervisorsConnect() {
  for (size_t i = 0; i < members_.size(); ++i) {
    const Supervisor& s = host_.supervisors[i];
    Member& member = members_[i];
    member.connected = s.alive;
    if (!s.alive) {
      member.state = Ended(s.state);
      member.exit = gang::Exit{.status = SIGKILL, .supervisor_lost = true};
      continue;
    }
    member.state = s.state;
    member.generation = s.generation;
    if (s.state == MemberState::kExited || s.state == MemberState::kStopped) {
      member.exit = s.exit.value_or(gang::Exit{.status = SIGKILL});
    }
    if (s.unkillable) member.unkillable = 1;
  }
  Remember();
  knows_members_ = true;
  if (search_.Idle()) Connect();
}

void LocalGang::SupervisorExecuted(size_t local, const Supervisor& says) {
  Member& member = members_[local];
  if (says.generation != member.generation) return;
  member.executed = true;
  MaybeNodeExecuted();
}

void LocalGang::SupervisorExited(size_t local, const Supervisor& says) {
  Member& member = members_[local];
  if (says.generation != member.generation || !says.exit) return;
  if (member.state == MemberState::kRunning) member.state = MemberState::kExited;
  member.exit = says.exit;
  Up(gang::Event(gang::MemberExited{TaskOf(local), member.generation, *says.exit}));
  MaybeNodeExecuted();
}

void LocalGang::SupervisorExiting(size_t local, const Supervisor& says) {
  if (says.alive && says.generation != members_[local].generation) return;
  members_[local].stop.exiting = true;
  MaybeNodeStopped();
}

void LocalGang::SupervisorStopped(size_t local, const Supervisor& says) {
  Member& member = members_[local];
  if (says.alive && says.generation != member.generation) return;
  member.state = MemberState::kStopped;
  member.unkillable = says.unkillable ? 1 : 0;
  if (orders_.MayRun(member.generation) && !member.exit) {
    // It was fenced, or the musterd before this one had ordered it: for the coordinator it is news.
    member.exit = gang::Exit{.status = SIGKILL};
    Up(gang::Event(gang::MemberExited{TaskOf(local), member.generation, *member.exit}));
  }
  MaybeNodeStopped();
}

void LocalGang::SupervisorClosed(size_t local) {
  Member& member = members_[local];
  member.connected = false;
  if (finish_) return MaybeOver();
  member.state = Ended(member.state);
  if (!member.exit) member.exit = gang::Exit{.status = SIGKILL};
  member.exit->supervisor_lost = true;
  Up(gang::Event(gang::MemberExited{TaskOf(local), member.generation, *member.exit}));
  MaybeNodeStopped();
}

// The gang is over on this node: nothing of it is left here.
void LocalGang::MaybeOver() {
  if (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.connected; })) return;
  knows_members_ = false;
  search_.Close();
  search_.LeaseEnds();
  if (link_) link_->Close(kAgentEnd);
  link_.reset();
  orders_ = Orders();
  daemon_.EndAttendance();
}

void LocalGang::SupervisorSignalled(size_t local) {
  Up(gang::Event(gang::Terminating{TaskOf(local), SIGTERM}));
}

void LocalGang::Saved(size_t local, uint64_t generation, uint64_t step) {
  const Supervisor& s = host_.supervisors[local];
  if (s.generation != generation || members_[local].stop.ordered) return;
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

void LocalGang::Connect() {
  if (!knows_members_) return;
  const uint64_t number = search_.Dial(world_.now());
  world_.Log("n{} registers with n{}, term {}", host_.index(), coordinator(), orders_.term());
  link_ = daemon_.sim.network.Connect(host_.index(), coordinator());
  Link::End& end = link_->ends[kAgentEnd];
  end.open = true;
  end.message = [this, alive = daemon_.alive(), number](Message message) {
    if (alive.expired()) return;
    daemon_.Run([this, number, message = std::get<CoordinatorMessage>(std::move(message))] {
      if (search_.IsNewest(number) || MUSTER_PLANTED(stale_term)) FromCoordinator(message);
    });
  };
  end.closed = [this, alive = daemon_.alive(), number] {
    if (alive.expired()) return;
    daemon_.Run([this, number] {
      if (search_.IsNewest(number)) Disconnected();
    });
  };
  daemon_.sim.Dial(link_);
  AwaitLink();
  Register();
}

void LocalGang::AwaitLink() {
  const auto due = search_.due();
  if (!due) return;
  daemon_.Post(*due - world_.now(), [this, due] {
    if (search_.due() != due) return;
    if (search_.Due() == CoordinatorSearch::Step::kDial) return Connect();
    HangUp();
  });
}

void LocalGang::HangUp() {
  if (link_) link_->Close(kAgentEnd);
  Disconnected();
}

void LocalGang::Disconnected() {
  link_.reset();
  waiting_start_.reset();  // the registration will say that nothing was started
  search_.Lost(world_.now());
  AwaitLink();
}

// The search has turned to another node.
void LocalGang::Redial() {
  if (link_ && MUSTER_PLANTED(stale_term)) {
    old_links_.push_back(link_);
  } else if (link_) {
    link_->Close(kAgentEnd);
  }
  link_.reset();
  waiting_start_.reset();  // of another coordinator, which will be told that nothing was started
  Connect();
}

void LocalGang::CoordinatedHere() {
  if (search_.CoordinatedHere(host_.index())) Redial();
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
  message.term = orders_.term();
  message.coordinator = coordinator();
  message.started_generation = orders_.started();
  message.started_restore = orders_.from();
  message.checkpoint_bad = host_.saved.checkpoint_bad;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    message.members.push_back({.task = TaskOf(i),
                               .local_id = static_cast<uint32_t>(i),
                               .state = member.state,
                               .generation = member.generation,
                               .unkillable = member.unkillable,
                               .exit = member.exit});
  }
  Up(std::move(message));
  for (const auto& [key, written] : unacknowledged_) Up(written);
}

void LocalGang::Up(AgentMessage message) {
  if (link_) link_->Send(kAgentEnd, std::move(message));
}

void LocalGang::FromCoordinator(const CoordinatorMessage& message) {
  search_.Heard();
  if (!orders_.Obeys(message.term)) return;
  AdoptTerm(message.term);
  if (message.term != 0) daemon_.sim.invariants.Obeys(host_, message.term);
  std::visit([this](const auto& m) { On(m); }, message.kind);
}

void LocalGang::AdoptTerm(uint64_t term) {
  const bool stopped = start_ && !orders_.MayRun(start_->generation);
  if (!orders_.Adopt(term)) return;
  if (stopped) start_.reset();
  Remember();
}

void LocalGang::On(const Elsewhere& elsewhere) {
  if (search_.Elsewhere(elsewhere.node)) return Redial();
  HangUp();
}

// ---- orders

void LocalGang::On(const Start& start) {
  if (finish_ || !orders_.MayRun(start.generation)) return;
  // A daemon that has stood still may find an old order before it finds that its lease has ended.
  if (!attended() || !daemon_.MayStart()) {
    world_.Log("n{}: generation {} waits for the lease", host_.index(), start.generation);
    waiting_start_ = start;
    if (!attended()) return;
    return daemon_.Post(50 * kMs, [this, generation = start.generation] {
      if (waiting_start_ && waiting_start_->generation == generation && attended())
        On(Start(*std::exchange(waiting_start_, std::nullopt)));
    });
  }
  if (!start_ || start_->generation != start.generation) unacknowledged_.clear();
  start_ = start;
  if (start.ranks[TaskOf(0)] && orders_.Start(start.generation, start.restore)) Remember();
  for (size_t i = 0; i < members_.size(); ++i) StartMember(i);
}

void LocalGang::StartMember(size_t local) {
  Member& member = members_[local];
  const auto rank = start_->ranks[TaskOf(local)];
  if (!member.connected || member.generation >= start_->generation || !rank) return;
  member = Member{.connected = true, .state = MemberState::kRunning, .generation = start_->generation};
  host_.StartMember(local, {.generation = start_->generation,
                            .term = orders_.term(),
                            .content = start_->content,
                            .rank = *rank,
                            .from = start_->restore});
}

void LocalGang::On(const Stop& stop) {
  if (!orders_.Stop(stop.generation)) return;
  if (waiting_start_ && !orders_.MayRun(waiting_start_->generation)) waiting_start_.reset();
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!orders_.MayRun(members_[i].generation)) StopMember(i, stop.last_words);
  }
  MaybeNodeStopped();
}

void LocalGang::StopMember(size_t local, bool last_words) {
  Member& member = members_[local];
  if (!member.connected) return;
  if (member.state == MemberState::kWaiting || member.state == MemberState::kStopped) return;
  last_words &= daemon_.sim.options.gang.last_words_ms > 0;
  if (!member.stop.Order(last_words)) return;
  host_.StopMember(local, member.generation, last_words);
}

void LocalGang::On(const Finish& /*finish*/) {
  daemon_.sim.invariants.Ends();
  finish_ = true;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].connected) host_.FinishMember(i);
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

void LocalGang::On(const Notify& /*notify*/) {}

void LocalGang::MaybeNodeExecuted() {
  if (!start_ || !start_->ranks[TaskOf(0)] || !orders_.OwesExecuted(start_->generation)) return;
  for (const Member& member : members_) {
    if (member.generation != start_->generation) return;
    if (!member.executed && member.state == MemberState::kRunning) return;
  }
  orders_.SaidExecuted(start_->generation);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].executed)
      Up(gang::Event(gang::MemberExecuted{TaskOf(i), start_->generation, world_.now()}));
  }
}

void LocalGang::MaybeNodeStopped() {
  if (!orders_.OwesStopped()) return;
  uint32_t unkillable = 0;
  bool exiting = false;
  for (const Member& member : members_) {
    if (orders_.MayRun(member.generation)) return;
    const bool stopped = member.state == MemberState::kStopped || member.state == MemberState::kWaiting;
    if (!stopped && !member.stop.exiting) return;
    exiting |= !stopped;
    unkillable += member.unkillable;
  }
  if (exiting) {
    if (orders_.SayExiting()) Up(gang::Event(gang::NodeExiting{host_.index(), orders_.stopped()}));
    return;
  }
  orders_.SaidStopped();
  daemon_.SetStopped(orders_.stopped());
  Up(gang::Event(gang::NodeStopped{host_.index(), orders_.stopped(), 20000, unkillable}));
}

}  // namespace muster::sim
