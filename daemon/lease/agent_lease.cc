#include "daemon/lease/agent_lease.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace muster::lease {
namespace {

// Peers that are asked to carry a beat in one go.
constexpr size_t kRelays = 3;

}  // namespace

AgentLease::AgentLease(AgentSettings settings)
    : settings_(std::move(settings)),
      sequence_(settings_.first_sequence),
      fenced_(settings_.grace_until == 0),
      promised_(settings_.promised) {
  const auto& candidates = settings_.candidates;
  const auto self = std::find(candidates.begin(), candidates.end(), settings_.self);
  if (self == candidates.end()) return;
  place_ = static_cast<size_t>(self - candidates.begin());
  earlier_count_ = std::min(place_, kEarly);
  std::copy_n(candidates.begin(), earlier_count_, earlier_.begin());
}

bool AgentLease::Follow(uint64_t term, NodeIndex coordinator, const WitnessSet& witnesses, Source source,
                        Nanos now, Output* out) {
  if (term < term_ || term < promised_) return false;
  if (term > term_) Move(term, coordinator, witnesses, source == Source::kLink, now, out);
  return true;
}

// What is certain of the old term's authority stays as it is; nothing adds to it any more. `alive`: the coordinator itself has said
// so. One that is cut off, and reaches the store, may raise its term: to nodes that doubt it, it is as dead in that term.
void AgentLease::Move(uint64_t term, NodeIndex coordinator, const WitnessSet& witnesses, bool alive,
                      Nanos now, Output* out) {
  MaybeFence(now, out);
  followed_at_ = !alive && coordinator == coordinator_ && Doubts(now) ? Known() : now;
  held_until_ = std::max({held_until_, VotedUntil(), claimed_until_});
  claimed_until_ = 0;
  inherits_ = acked_in_term_ || inherits_;
  acked_in_term_ = false;
  term_ = term;
  coordinator_ = coordinator;
  witnesses_ = witnesses;
  promised_ = std::max(promised_, term - 1);
  stamp_ = 0;
  // Another coordinator counts generations from what it knows: what was stopped in the old term says nothing in this.
  stop_surfaced_ = 0;
  stopped_ = 0;
  abandoned_at_ = 0;
  next_claim_ = 0;
  votes_.fill(0);
  early_votes_.fill(0);
  next_beat_ = now;
  next_ask_ = 0;
}

Datagram AgentLease::Make(Type type, NodeIndex to, Nanos now) {
  Datagram datagram;
  datagram.type = type;
  datagram.gang = settings_.gang;
  datagram.term = term_;
  datagram.sequence = sequence_++;
  datagram.from = settings_.self;
  datagram.to = to;
  datagram.coordinator = coordinator_;
  datagram.sent = now;
  return datagram;
}

// ---- what it knows

Nanos AgentLease::RunUntil() const {
  Nanos until = std::max({held_until_, claimed_until_, VotedUntil(), settings_.grace_until});
  if (acked_ != 0) until = std::max(until, acked_ + settings_.times.lease);
  return until;
}

bool AgentLease::MayBeatSupervisors(Nanos now) const {
  if (fences_pending_ > 0) return false;
  if (fenced_) return true;
  return RunUntil() - now >= settings_.times.lease - settings_.times.Freshness();
}

Nanos AgentLease::Known() const {
  return acked_in_term_ ? std::max(acked_, followed_at_) : followed_at_;
}

// A node that has never been acked, and did not come from another term, cannot tell a dead coordinator from one that
// is still waiting for its first majority.
bool AgentLease::Doubts(Nanos now) const {
  if (term_ == 0) return false;
  if (promised_ >= term_) return true;
  return (acked_in_term_ || inherits_) && now - Known() > settings_.times.lease / 2;
}

size_t AgentLease::FreshVotes(Nanos now) const {
  size_t fresh = 0;
  for (size_t i = 0; i < witnesses_.size(); ++i) {
    if (witnesses_[i] == settings_.self || (votes_[i] != 0 && now < votes_[i] + settings_.times.lease))
      ++fresh;
  }
  return fresh;
}

// The time that a majority's votes are fresh until.
Nanos AgentLease::VotedUntil() const {
  if (abandoned_at_ == 0) return 0;
  std::array<Nanos, kMaxWitnesses> asked{};
  for (size_t i = 0; i < witnesses_.size(); ++i) {
    asked[i] = witnesses_[i] == settings_.self ? kNever : votes_[i];
  }
  std::sort(asked.begin(), asked.end(), std::greater<>());
  const Nanos oldest = asked[witnesses_.Majority() - 1];
  if (oldest == 0) return 0;
  const Nanos until = abandoned_at_ + settings_.times.reconnect;
  return oldest == kNever ? until : std::min(until, oldest + settings_.times.lease);
}

// ---- what comes in

void AgentLease::Receive(const Datagram& datagram, Nanos now, Output* out) {
  if (datagram.gang != settings_.gang) return;
  MaybeFence(now, out);
  switch (datagram.type) {
    case Type::kBeat:
    case Type::kSpent:
      Relay(datagram, now, out);
      break;
    case Type::kAck:
      if (datagram.to == settings_.self) {
        OnAck(datagram, now, out);
      } else {
        Relay(datagram, now, out);
      }
      break;
    case Type::kAsk:
      OnAsk(datagram, now, out);
      break;
    case Type::kVote:
      OnVote(datagram, now, out);
      break;
    case Type::kLead:
      OnLead(datagram, now, out);
      break;
  }
}

void AgentLease::OnAck(const Datagram& ack, Nanos now, Output* out) {
  if (ack.term != term_) return;
  if (ack.sent > stamp_) {
    // A coordinator needs to see its own stamp come back before it can renew anything.
    if (stamp_ == 0) next_beat_ = now;
    stamp_ = ack.sent;
    closed_ = ack.witnesses;
  }
  if (ack.generation > stop_surfaced_) {
    stop_surfaced_ = ack.generation;
    out->events.push_back({EventKind::kStopOrdered, kNoNode, term_, stop_surfaced_});
  }
  if ((ack.flags & kGranted) == 0) return;
  const auto beat = std::find_if(sent_.begin(), sent_.end(), [&](const SentBeat& sent) {
    return sent.sequence == ack.echo && sent.at != 0;
  });
  if (beat == sent_.end() || beat->at <= acked_) return;
  const bool fresh = now < beat->at + settings_.times.lease;
  if (fenced_ && !fresh) return;  // too late to be of any use
  acked_ = beat->at;
  next_beat_ = std::max(next_beat_, acked_ + settings_.times.beat);
  settings_.grace_until = 0;
  if (!acked_in_term_ || fenced_) out->events.push_back({EventKind::kAttended, coordinator_, term_, 0});
  acked_in_term_ = true;
  fenced_ = false;
}

void AgentLease::Relay(const Datagram& datagram, Nanos now, Output* out) const {
  if (datagram.term != term_ || datagram.from == settings_.self) return;
  if (datagram.type == Type::kAck) {
    out->sends.push_back({datagram.to, false, true, datagram});
    return;
  }
  if (coordinator_ == settings_.self || promised_ >= term_ || !acked_in_term_ || Doubts(now)) return;
  out->sends.push_back({coordinator_, false, true, datagram});
}

void AgentLease::Tell(NodeIndex to, Nanos now, Output* out) {
  Datagram lead = Make(Type::kLead, to, now);
  lead.witnesses = witnesses_;
  out->sends.push_back({to, true, false, lead});
}

void AgentLease::OnLead(const Datagram& lead, Nanos now, Output* out) {
  if (lead.term < term_) {
    Tell(lead.from, now, out);
    return;
  }
  if (lead.term == term_ || lead.coordinator == kNoNode || lead.witnesses.empty()) return;
  // One that promised for it already, before it restarted, follows too: it says so to the coordinator.
  if (lead.term < promised_) return;
  const bool alive = lead.type == Type::kLead && lead.from == lead.coordinator;
  Move(lead.term, lead.coordinator, lead.witnesses, alive, now, out);
  out->events.push_back({EventKind::kSuccessor, coordinator_, term_, 0});
  Beat(now, out);
}

void AgentLease::OnAsk(const Datagram& ask, Nanos now, Output* out) {
  if (ask.from == settings_.self) return;
  if (ask.term != term_) {
    OnLead(ask, now, out);
    if (ask.term != term_) return;
  }
  if (promised_ < term_) {
    if (!Doubts(now)) return;
    Promise();
  }
  Datagram vote = Make(Type::kVote, ask.from, now);
  vote.echo = static_cast<uint64_t>(ask.sent);
  out->sends.push_back({ask.from, false, false, vote});
}

void AgentLease::OnVote(const Datagram& vote, Nanos now, Output* out) {
  const auto asked = static_cast<Nanos>(vote.echo);
  if (vote.term != term_ || asked > now || asked < followed_at_) return;
  const size_t position = witnesses_.Position(vote.from);
  if (position < witnesses_.size()) votes_[position] = std::max(votes_[position], asked);
  for (size_t i = 0; i < earlier_count_; ++i) {
    if (earlier_[i] == vote.from) early_votes_[i] = std::max(early_votes_[i], asked);
  }
  CountVotes(now, out);
}

void AgentLease::Promise() {
  promised_ = std::max(promised_, term_);
}

void AgentLease::CountVotes(Nanos now, Output* out) {
  const bool majority = FreshVotes(now) >= witnesses_.Majority();
  if (abandoned_at_ != 0) {
    if (!majority) abandoned_at_ = 0;
    return;
  }
  if (!majority || !Doubts(now) || next_ask_ == 0) return;
  Promise();
  abandoned_at_ = now;
  // The votes of candidates before this one may be on their way.
  next_take_over_ = now + settings_.times.beat / 4;
  out->events.push_back({EventKind::kAbandoned, coordinator_, term_, 0});
}

void AgentLease::Claimed(uint64_t term, bool ok, Nanos now) {
  if (!ok || term != term_ || fenced_ || now >= RunUntil()) return;
  claimed_until_ = now + settings_.times.lease;
}

// ---- what time brings

void AgentLease::Tick(Nanos now, Output* out) {
  if (term_ != 0) {
    if (now >= next_beat_) Beat(now, out);
    if (!Doubts(now)) {
      next_ask_ = 0;
    } else if (now - Known() >= settings_.times.lease * 5 / 8 && now >= next_ask_) {
      Ask(now, out);
    }
    CountVotes(now, out);
    MaybeClaim(now, out);
    MaybeTakeOver(now, out);
  }
  MaybeFence(now, out);
}

Nanos AgentLease::NextTick() const {
  Nanos next = fenced_ ? kNever : RunUntil();
  if (term_ == 0) return next;
  next = std::min(next, next_beat_);
  if (next_ask_ == 0 && (acked_in_term_ || inherits_ || promised_ >= term_)) {
    next = std::min(next, Known() + settings_.times.lease * 5 / 8);
  }
  if (next_ask_ != 0) next = std::min(next, next_ask_);
  if (abandoned_at_ != 0) next = std::min(next, std::max(next_take_over_, Turn()));
  return next;
}

void AgentLease::Beat(Nanos now, Output* out) {
  const bool dead = promised_ >= term_;
  Datagram beat = Make(dead ? Type::kSpent : Type::kBeat, coordinator_, now);
  beat.echo = static_cast<uint64_t>(stamp_);
  beat.generation = stopped_;
  if (!fenced_ && settings_.grace_until != 0) beat.flags |= kOnGrace;
  if (!dead) {
    sent_[sent_next_] = {beat.sequence, now};
    sent_next_ = (sent_next_ + 1) % kRemembered;
  }
  out->sends.push_back({coordinator_, false, false, beat});
  if (Doubts(now) && !witnesses_.empty()) {
    size_t relays = 0;
    for (size_t i = 0; i < witnesses_.size() && relays < kRelays; ++i) {
      const NodeIndex peer = witnesses_[next_relay_++ % witnesses_.size()];
      if (peer == settings_.self || peer == coordinator_) continue;
      out->sends.push_back({peer, false, false, beat});
      ++relays;
    }
  }
  // Until it is acked, when the next one is put off.
  next_beat_ = now + (dead || fenced_ ? settings_.times.beat : settings_.times.beat / 2);
}

void AgentLease::Ask(Nanos now, Output* out) {
  const auto ask = [&](NodeIndex peer) {
    Datagram datagram = Make(Type::kAsk, peer, now);
    datagram.witnesses = witnesses_;
    out->sends.push_back({peer, false, false, datagram});
  };
  for (const NodeIndex peer : witnesses_) {
    if (peer != settings_.self) ask(peer);
  }
  for (size_t i = 0; i < earlier_count_; ++i) {
    if (!witnesses_.Contains(earlier_[i])) ask(earlier_[i]);
  }
  const bool urgent = abandoned_at_ == 0 && !fenced_;
  next_ask_ = now + (urgent ? settings_.times.beat / 4 : settings_.times.beat);
}

// Two nodes: the one without the coordinator has no majority, and nobody else to ask.
void AgentLease::MaybeClaim(Nanos now, Output* out) {
  if (place_ == SIZE_MAX || coordinator_ == settings_.self || !Doubts(now) || now < next_claim_) return;
  if (now - Known() < settings_.times.lease * 5 / 8) return;
  const size_t others = witnesses_.size() - (witnesses_.Contains(coordinator_) ? 1 : 0);
  if (others == 0 || others >= witnesses_.Majority()) return;
  for (size_t i = 0; i < witnesses_.size(); ++i) {
    const NodeIndex node = witnesses_[i];
    if (node == settings_.self || node == coordinator_) continue;
    if (votes_[i] == 0 || now >= votes_[i] + settings_.times.lease) return;
  }
  Promise();
  next_claim_ = now + 2 * settings_.times.succession;
  out->events.push_back({EventKind::kClaim, coordinator_, term_, 0});
}

// One step for each candidate before this one that is alive; the old coordinator has had its turn.
Nanos AgentLease::Turn() const {
  if (place_ == SIZE_MAX) return kNever;
  size_t alive = place_ - earlier_count_;
  for (size_t i = 0; i < earlier_count_; ++i) {
    if (earlier_[i] != coordinator_ && early_votes_[i] + settings_.times.lease > abandoned_at_) ++alive;
  }
  if (coordinator_ == settings_.self) alive += 2;
  return abandoned_at_ + static_cast<Nanos>(alive) * settings_.times.succession;
}

void AgentLease::MaybeTakeOver(Nanos now, Output* out) {
  if (abandoned_at_ == 0 || now < next_take_over_ || now < Turn()) return;
  next_take_over_ = now + 2 * settings_.times.succession;
  out->events.push_back({EventKind::kTakeOver, coordinator_, term_, 0});
}

void AgentLease::MaybeFence(Nanos now, Output* out) {
  if (fenced_ || now < RunUntil()) return;
  fenced_ = true;
  ++fences_pending_;
  settings_.grace_until = 0;
  out->events.push_back({EventKind::kFence, kNoNode, term_, 0});
}

}  // namespace muster::lease
