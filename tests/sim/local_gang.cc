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
      search_(daemon.sim.options.candidates, kTimes) {
  for (size_t i = 0; i < host_.supervisors.size(); ++i) members_[TaskOf(i)];
  if (!saved.known) return;
  search_.Restore(saved.coordinator);
  orders_.Restore(saved.term, saved.started_generation, saved.started_restore);
  if (orders_.term() > 0) grace_until_ = saved.last_alive + daemon.sim.options.times.reconnect;
}

LocalGang::~LocalGang() = default;

uint32_t LocalGang::TaskOf(size_t local) const {
  return static_cast<uint32_t>(host_.index() * host_.supervisors.size() + local);
}

size_t LocalGang::LocalOf(uint32_t task) const {
  return task - TaskOf(0);
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
  for (auto& [task, member] : members_) {
    const Supervisor& s = host_.supervisors[LocalOf(task)];
    member.connected = s.alive;
    if (s.alive) {
      // A supervisor with processes that SIGKILL has not removed says that it has stopped only when it is asked again.
      member.Returned(Wire(s.unkillable ? MemberState::kExited : s.state), s.generation, EndOf(s.exit));
    } else if (member.SupervisorDied(orders_) && (s.state == MemberState::kStopped || s.generation == 0)) {
      // musterd sees soon that nothing is left. Of what is left Host::Swept says when it has been killed.
      daemon_.Post(20 * kMs, [this, &member, left = s.unkillable ? 1U : 0U] {
        member.LeftKilled(left);
        MaybeNodeStopped();
      });
    }
  }
  Remember();
  knows_members_ = true;
  BeginAttendance();
  if (search_.Idle()) Connect();
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
  } else if (member.Stopped(says.generation, left, 0, orders_)) {
    SayEnd(TaskOf(local), member);
  }
  MaybeNodeStopped();
}

void LocalGang::SupervisorClosed(size_t local) {
  Member& member = Of(local);
  member.connected = false;
  if (finish_) return MaybeOver();
  member.SupervisorDied(orders_);
  SayEnd(TaskOf(local), member);
  MaybeNodeStopped();
}

void LocalGang::SayEnd(uint32_t task, const Member& member) {
  Up(gang::Event(gang::MemberExited{task, member.generation, ExitOf(*member.end)}));
}

// The gang is over on this node: nothing of it is left here.
void LocalGang::MaybeOver() {
  if (std::ranges::any_of(members_, [](const auto& item) { return item.second.connected; })) return;
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
  for (auto& [task, member] : members_) StartMember(task, member);
}

void LocalGang::StartMember(uint32_t task, Member& member) {
  const auto rank = start_->ranks[task];
  if (!member.connected || !rank || !member.Start(start_->generation)) return;
  host_.StartMember(LocalOf(task), {.generation = start_->generation,
                                    .term = orders_.term(),
                                    .content = start_->content,
                                    .rank = *rank,
                                    .from = start_->restore});
}

void LocalGang::On(const Stop& stop) {
  if (!orders_.Stop(stop.generation)) return;
  if (waiting_start_ && !orders_.MayRun(waiting_start_->generation)) waiting_start_.reset();
  for (auto& [task, member] : members_) {
    if (!orders_.MayRun(member.generation)) StopMember(task, member, stop.last_words);
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

void LocalGang::On(const Notify& /*notify*/) {}

void LocalGang::MaybeNodeExecuted() {
  if (!start_ || !start_->ranks[TaskOf(0)]) return;
  const auto said = SayExecuted(members_, start_->generation, &orders_);
  if (!said) return;
  for (const uint32_t task : said->tasks)
    Up(gang::Event(gang::MemberExecuted{task, start_->generation, said->time_ns}));
}

void LocalGang::MaybeNodeStopped() {
  const auto said = SayStopped(members_, members_.size(), &orders_);
  if (!said) return;
  if (said->exiting) return Up(gang::Event(gang::NodeExiting{host_.index(), orders_.stopped()}));
  daemon_.SetStopped(orders_.stopped());
  Up(gang::Event(gang::NodeStopped{host_.index(), orders_.stopped(), 20000, said->unkillable}));
}

}  // namespace muster::sim
