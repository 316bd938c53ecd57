#include "daemon/agent/agent_core.h"

#include <algorithm>

#include "base/planted.h"

namespace muster {

void AgentCore::Restore(uint32_t coordinator, uint64_t term, uint64_t started, std::optional<uint64_t> from) {
  search_.Restore(coordinator);
  orders_.Restore(term, started, from);
}

// ---- the link

void AgentCore::Connect() {
  if (search_.Idle()) DialNext();
}

void AgentCore::DialNext() {
  const bool may = shell_.MayRegister();
  if (may) shell_.Dial(search_.coordinator(), search_.Dial(shell_.Now()));
  shell_.WakeForLink(search_.due());
  if (may) shell_.Register();
}

void AgentCore::Lost() {
  waiting_.reset();  // the next registration will say that nothing was started
  search_.Lost(shell_.Now());
  shell_.WakeForLink(search_.due());
}

void AgentCore::LinkDue() {
  if (search_.Due() == CoordinatorSearch::Step::kDial) return DialNext();
  HangUp("does not answer");
}

// Gives up on a link that does not say that it has ended.
void AgentCore::HangUp(const std::string& why) {
  shell_.CloseLink(why);
  Lost();
}

// The search has turned to another node.
void AgentCore::Redial() {
  shell_.CloseLink("");
  waiting_.reset();
  DialNext();
}

void AgentCore::Anew() {
  search_.Anew();
  Redial();
}

void AgentCore::CoordinatedHere() {
  if (search_.CoordinatedHere(self_)) Redial();
}

// ---- what the coordinator says

// A coordinator that has been replaced, and does not know that yet, is not obeyed. A link on which nobody else speaks is hung up like one
// on which nobody speaks.
bool AgentCore::Heard(uint64_t term) {
  if (!orders_.Obeys(term)) return false;
  search_.Heard();
  shell_.WakeForLink(search_.due());
  Adopt(term);
  return true;
}

// Stops that the coordinator before ordered bind the next one no more: it may not know their numbers.
void AgentCore::Adopt(uint64_t term) {
  const bool stopped = running_ && !orders_.MayRun(*running_);
  if (!orders_.Adopt(term)) return;
  if (stopped) running_.reset();
  shell_.NewTerm(stopped);
  // A musterd that is restarted now obeys no coordinator of an older term.
  shell_.Save();
}

void AgentCore::Elsewhere(std::optional<uint32_t> node) {
  if (search_.Elsewhere(node)) return Redial();
  HangUp("does not coordinate this gang");
}

void AgentCore::Attended(uint32_t coordinator, const lease::WitnessSet& witnesses) {
  search_.TakenIn(coordinator);
  shell_.Save();
  shell_.Follow(orders_.term(), coordinator, witnesses, lease::Source::kLink);
}

void AgentCore::Start(uint64_t generation, std::function<void()> start) {
  if (finished_ || !orders_.MayRun(generation)) return;
  waiting_.reset();
  // A daemon that has stood still may find an old order before it finds that its lease has ended.
  if (!shell_.MayStart()) {
    waiting_ = Waiting{generation, std::move(start)};
    return shell_.StartLater();
  }
  running_ = generation;
  start();
}

void AgentCore::StartDue() {
  if (auto waiting = std::exchange(waiting_, std::nullopt))
    Start(waiting->generation, std::move(waiting->start));
}

void AgentCore::Started(uint64_t generation, std::optional<uint64_t> from) {
  if (orders_.Start(generation, from)) shell_.Save();
}

void AgentCore::Stop(uint64_t generation, bool last_words) {
  if (!orders_.Stop(generation)) return;
  if (waiting_ && !orders_.MayRun(waiting_->generation)) waiting_.reset();
  shell_.StopMembers(last_words);
}

// ---- what the lease says

void AgentCore::LeaseBegins() {
  if (search_.LeaseBegins()) return Redial();
  StartDue();
}

// The right to run has ended: this node is cut off, or the coordinator is and nobody has taken its place.
void AgentCore::Fence() {
  search_.LeaseEnds();
  if (!MUSTER_PLANTED(no_fencing)) {
    // Also what has been ordered to stop, and still says its last words.
    if (const uint64_t newest = shell_.FenceMembers(); newest > 0)
      Stop(std::max(newest, orders_.stopped()), false);
  }
  // The other end may be gone long since without a word: a new link finds out who coordinates now, and what became of the gang, as soon as
  // the network is back.
  if (search_.linked_at()) HangUp("is not heard any more");
}

void AgentCore::Successor(uint64_t term, uint32_t node) {
  if (term < orders_.term()) return;
  const bool news = search_.Announced(node);
  Adopt(term);
  if (news) return Redial();
  // The beats may tell of the term before the link does. What the coordinator has said over the link in the term before is refused from
  // now on: a registration has it say again what counts.
  shell_.Register();
}

// With last words, unless the coordinator's own message, which may come later, says otherwise.
void AgentCore::StopOrdered(uint64_t term, uint64_t generation) {
  if (term >= orders_.term() && orders_.MayRun(generation)) Stop(generation, true);
}

// ---- the record

// It is this node's turn. `claim`: the answer decides whether the members may run on.
void AgentCore::AskToTakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) {
  if (taking_over_ || finished_) {
    if (claim) shell_.Claimed(term, false);
    return;
  }
  taking_over_ = true;  // the answer may come at once
  shell_.TakeOver(term, closed, claim);
}

void AgentCore::TakenOver(uint64_t term, bool claim, bool taken) {
  taking_over_ = false;
  if (claim) shell_.Claimed(term, taken);
  if (!taken) return shell_.ReadRecord();
  // The announcement of this node's coordinator will come through the beats too; this is sooner.
  search_.TookOver(self_);
  Redial();
}

// A node that has lost a compare-and-swap gives the winner time to announce itself, then reads the record: the winner may have died since.
bool AgentCore::Learned(const std::optional<Recorded>& record) {
  if (finished_) return false;
  if (!record) {
    shell_.ReadRecord();
    return false;
  }
  if (record->term < orders_.term()) return false;
  const bool news = search_.Recorded(record->node, record->term > orders_.term());
  Adopt(record->term);
  // Also when this agent knows the term: the lease may not.
  shell_.Follow(orders_.term(), record->node, record->witnesses, lease::Source::kRecord);
  if (news) Redial();
  return news;
}

}  // namespace muster
