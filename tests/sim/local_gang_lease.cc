// LocalGang's right to run members, and its turn to coordinate: daemon/agent/local_gang_life.cc.
#include <utility>

#include "base/planted.h"
#include "tests/sim/daemon.h"
#include "tests/sim/local_gang.h"
#include "tests/sim/simulation.h"

namespace muster::sim {

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
  daemon_.Attend(std::move(settings), orders_.term() > 0);
}

void LocalGang::On(const Attended& attended) {
  search_.TakenIn(attended.coordinator);
  Remember();
  daemon_.Follow(orders_.term(), coordinator(), attended.witnesses, lease::Source::kLink);
}

void LocalGang::OnLease(const lease::Event& event, const lease::WitnessSet& closed) {
  switch (event.kind) {
    case lease::EventKind::kAttended:
      world_.Log("n{} is attended, term {}", host_.index(), event.term);
      host_.Attended();
      grace_until_ = 0;
      if (search_.LeaseBegins()) return Redial();
      if (waiting_start_) On(Start(*std::exchange(waiting_start_, std::nullopt)));
      return;
    case lease::EventKind::kFence:
      Fence();
      return daemon_.Fenced();
    case lease::EventKind::kClaim:
      return TakeOver(event.term, {}, true);
    case lease::EventKind::kTakeOver:
      return TakeOver(event.term, closed, false);
    case lease::EventKind::kSuccessor:
      if (event.term < orders_.term()) return;
      AdoptTerm(event.term);
      return search_.Announced(event.node) ? Redial() : Register();
    case lease::EventKind::kStopOrdered:
      if (event.term >= orders_.term() && orders_.MayRun(event.generation)) On(Stop{event.generation, true});
      return;
    default:
      return;
  }
}

void LocalGang::Fence() {
  search_.LeaseEnds();
  if (!MUSTER_PLANTED(no_fencing)) KillFenced();
  // The other end may be gone long since without a word.
  if (link_) HangUp();
}

void LocalGang::KillFenced() {
  const uint64_t newest = NewestWithProgram(members_);
  world_.Log("n{}: fenced", host_.index());
  if (newest == 0) return;
  daemon_.sim.invariants.Cause(newest);
  for (auto& [task, member] : members_) {
    if (member.Fence(world_.now())) SayEnd(task, member);
  }
  On(Stop{newest});
}

void LocalGang::TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) {
  if (taking_over_ || finish_) {
    if (claim) daemon_.Claimed(term, false);
    return;
  }
  world_.Log("n{} takes over after term {}", host_.index(), term);
  taking_over_ = true;
  Coordinator::Origin origin;
  origin.promised = true;
  origin.after_term = term;
  origin.closed = closed;
  origin.taken = [this, alive = daemon_.alive(), term, claim](bool taken) {
    if (alive.expired()) return;
    taking_over_ = false;
    if (claim) daemon_.Claimed(term, taken);
    if (taken) {
      search_.TookOver(host_.index());
      return Redial();
    }
    LearnFromStore();
  };
  daemon_.TakeOver(std::move(origin));
}

// Who has lost a compare-and-swap gives the winner time to announce itself, then reads who it is: it may have died since.
void LocalGang::LearnFromStore() {
  daemon_.Post(world_.Pick(1'500, 2'500) * kMs, [this] {
    const auto answer = [this, alive = daemon_.alive()](Store::Answer done, const Store::Head& head) {
      if (alive.expired()) return;
      daemon_.Run([this, done, head] {
        if (done != Store::Answer::kDone) return LearnFromStore();
        if (head.fence.term < orders_.term() || finish_) return;
        const uint32_t recorded = daemon_.sim.NodeOf(head.record->coordinator);
        const bool newer = head.fence.term > orders_.term();
        if (!newer && recorded == search_.coordinator() && MUSTER_PLANTED(known_term_not_followed)) return;
        const bool news = search_.Recorded(recorded, newer);
        AdoptTerm(head.fence.term);
        // Also when the term is known: the lease may not know it.
        daemon_.Follow(orders_.term(), recorded, lease::WitnessSet::Of(head.record->witnesses),
                       lease::Source::kRecord);
        if (news) Redial();
      });
    };
    daemon_.sim.store.Ask(
        host_.index(), [](Store::Head& /*head*/) { return true; }, answer);
  });
}

}  // namespace muster::sim
