#include "daemon/lease/coordinator_lease.h"

#include <algorithm>
#include <utility>

namespace muster::lease {

CoordinatorLease::CoordinatorLease(LeadSettings settings, Nanos now)
    : settings_(std::move(settings)),
      nodes_(settings_.nodes),
      sequence_(settings_.first_sequence),
      stop_(settings_.stop_generation),
      last_tick_(now),
      awake_since_(now),
      next_tick_(now),
      began_(now),
      closed_now_(settings_.closed) {
  if (!settings_.inherited) return;
  store_confirmed_ = settings_.asked_at;
  if (settings_.former.empty()) settings_.former.push_back(settings_.witnesses);
  for (const NodeIndex node : settings_.watched) {
    if (node >= nodes_.size()) continue;
    nodes_[node].watched = true;
    nodes_[node].bound = kNever;
  }
}

Datagram CoordinatorLease::Make(Type type, NodeIndex to, Nanos now) {
  Datagram datagram;
  datagram.type = type;
  datagram.gang = settings_.gang;
  datagram.term = settings_.term;
  datagram.sequence = sequence_++;
  datagram.from = settings_.self;
  datagram.to = to;
  datagram.coordinator = settings_.self;
  datagram.sent = now;
  return datagram;
}

// ---- what the owner says

void CoordinatorLease::NodeAttached(NodeIndex node, Nanos now) {
  if (node >= nodes_.size()) return;
  Node& n = nodes_[node];
  if (n.closed) {
    n.closed = false;
    n.proved = false;
  }
  if (!n.watched || n.removed || n.silent) n.bound = std::max(n.bound, now + 2 * settings_.times.silence);
  n.watched = true;
  n.removed = false;
  n.silent = false;
  n.barred = false;
  n.attached = now;
  n.sequence = 0;
  closed_now_ = {};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].closed) closed_now_.Add(static_cast<NodeIndex>(i));
  }
}

void CoordinatorLease::NodeClosed(NodeIndex node, Nanos now) {
  if (node >= nodes_.size() || !nodes_[node].watched) return;
  Node& n = nodes_[node];
  n.closed = true;
  n.proved = false;
  n.bound = std::max(n.bound == kNever ? 0 : n.bound, now + settings_.times.reconnect);
  closed_now_.Add(node);
}

void CoordinatorLease::NodeRemoved(NodeIndex node) {
  if (node >= nodes_.size()) return;
  nodes_[node].watched = false;
  nodes_[node].removed = true;
}

void CoordinatorLease::StoreConfirmed(Nanos at, Nanos now, Output* out) {
  store_confirmed_ = std::max(store_confirmed_, std::min(at, now));
  UpdateQuorum(now, out);
  FindSilent(now, out);
}

void CoordinatorLease::Depose(uint64_t term, Output* out) {
  if (deposed_ || term <= settings_.term) return;
  deposed_ = true;
  out->events.push_back({EventKind::kDeposed, kNoNode, term, 0});
}

// ---- what comes in

void CoordinatorLease::Receive(const Datagram& datagram, Nanos now, Output* out) {
  if (datagram.gang != settings_.gang || deposed_) return;
  if (datagram.term > settings_.term) {
    Depose(datagram.term, out);
    return;
  }
  NoticePause(now);
  if (datagram.type != Type::kBeat && datagram.type != Type::kSpent) return;
  if (datagram.from >= nodes_.size() || nodes_[datagram.from].removed) return;
  if (datagram.term < settings_.term) {
    Datagram lead = Make(Type::kLead, datagram.from, now);
    lead.witnesses = settings_.witnesses;
    out->sends.push_back({datagram.from, true, false, lead});
    return;
  }
  if (datagram.type == Type::kSpent) {
    if (now < next_spent_) return;
    next_spent_ = now + 2 * settings_.times.succession;
    out->events.push_back({EventKind::kTermSpent, datagram.from, settings_.term, 0});
    return;
  }
  OnBeat(datagram, now, out);
}

void CoordinatorLease::OnBeat(const Datagram& beat, Nanos now, Output* out) {
  Node& n = nodes_[beat.from];
  const Times& times = settings_.times;
  last_beat_ = now;
  if (beat.sequence > n.sequence) {
    n.sequence = beat.sequence;
    n.heard = now;
    n.echo = std::max(n.echo, std::min(static_cast<Nanos>(beat.echo), now));
    const bool grace = (beat.flags & kOnGrace) != 0;
    if (grace || n.attached == 0) {
      // Its musterd was restarted, or may be again with no link whose end would be seen.
      n.proved = false;
      n.bound = std::max(n.bound == kNever ? 0 : n.bound, now + times.lease + times.reconnect);
    } else {
      n.proved |= !n.closed && n.echo >= n.attached;
      n.bound = n.proved ? now + times.lease : std::max(n.bound == kNever ? 0 : n.bound, now + times.lease);
    }
    if (!n.beaten || n.silent) out->events.push_back({EventKind::kHeard, beat.from, settings_.term, 0});
    n.beaten = true;
    n.silent = false;
    if (beat.generation > n.stopped) {
      n.stopped = beat.generation;
      out->events.push_back({EventKind::kStopped, beat.from, settings_.term, beat.generation});
    }
    UpdateQuorum(now, out);
  }
  Datagram ack = Make(Type::kAck, beat.from, now);
  ack.echo = beat.sequence;
  ack.generation = stop_;
  ack.witnesses = closed_now_;
  if (HasQuorum(now) && !n.barred) ack.flags |= kGranted;
  out->sends.push_back({beat.from, true, false, ack});
}

// ---- what it concludes

size_t CoordinatorLease::SentSince(Nanos time) const {
  size_t count = 0;
  for (const NodeIndex node : settings_.witnesses) {
    if (node < nodes_.size() && nodes_[node].echo != 0 && nodes_[node].echo >= time) ++count;
  }
  return count;
}

bool CoordinatorLease::HasQuorum(Nanos now) const {
  if (deposed_) return false;
  if (store_confirmed_ != 0 && now - store_confirmed_ <= settings_.times.lease) return true;
  return SentSince(now - settings_.times.lease) >= settings_.witnesses.Majority();
}

void CoordinatorLease::UpdateQuorum(Nanos now, Output* out) {
  if (deposed_ || HasQuorum(now) == quorum_) return;
  quorum_ = !quorum_;
  had_quorum_ = had_quorum_ || quorum_;
  out->events.push_back({quorum_ ? EventKind::kQuorum : EventKind::kLostQuorum, kNoNode, settings_.term, 0});
}

// Whether nobody can carry the nodes of earlier terms any more: their witnesses have come here.
void CoordinatorLease::SettleFormer(Nanos now) {
  if (former_settled_ || !settings_.inherited) return;
  for (const WitnessSet& set : settings_.former) {
    const auto came = std::count_if(
        set.begin(), set.end(), [&](NodeIndex node) { return node < nodes_.size() && nodes_[node].beaten; });
    if (static_cast<size_t>(came) < set.Blocking()) return;
  }
  former_settled_ = true;
  const Nanos lease = settings_.times.lease;
  const Nanos bound =
      settings_.promised ? std::max(settings_.taken_at + 2 * lease, now + lease) : now + 2 * lease;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    if (n.bound != kNever) continue;
    n.bound = bound;
    if (settings_.closed.Contains(static_cast<NodeIndex>(i))) {
      n.bound = std::max(bound, settings_.taken_at + settings_.times.reconnect);
    }
    // Its musterd may go as late as the old coordinator's last lease ends.
    if (settings_.returned) n.bound = std::max(bound, settings_.taken_at + lease + settings_.times.reconnect);
  }
}

void CoordinatorLease::SettleHeardBefore(Nanos now) {
  for (const auto& [node, terms] : settings_.heard_before) {
    const Nanos bound = began_ + settings_.times.lease + terms * settings_.times.reconnect;
    if (now >= bound && node < nodes_.size() && nodes_[node].bound == kNever) nodes_[node].bound = bound;
  }
}

void CoordinatorLease::FindSilent(Nanos now, Output* out) {
  const Times& times = settings_.times;
  if (deposed_ || now < awake_since_ + times.silence) return;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    if (!n.watched || n.silent || n.bound == kNever || now - n.bound < times.silence - times.lease) continue;
    const size_t sent = SentSince(n.bound);
    if (sent >= settings_.witnesses.Majority() ||
        (sent >= settings_.witnesses.Blocking() && store_confirmed_ >= n.bound)) {
      n.silent = true;
      n.barred = true;
      out->events.push_back({EventKind::kSilent, static_cast<NodeIndex>(i), settings_.term, 0});
    }
  }
}

// Asked for when the majority is about to be lost, or has been, and when a node waits for the store's word alone.
void CoordinatorLease::WantStore(Nanos now, Output* out) {
  const Times& times = settings_.times;
  if (deposed_ || now < asked_store_ + times.lease / 2) return;
  const bool mine = had_quorum_ || settings_.inherited;
  bool want = mine && now - last_beat_ <= times.lease &&
              SentSince(now - times.lease * 3 / 4) < settings_.witnesses.Majority() &&
              now - store_confirmed_ >= times.lease / 4;
  for (size_t i = 0; i < nodes_.size() && !want; ++i) {
    const Node& n = nodes_[i];
    if (!n.watched || n.silent || n.bound == kNever || now < n.bound || store_confirmed_ >= n.bound) continue;
    const size_t sent = SentSince(n.bound);
    want = sent >= settings_.witnesses.Blocking() && sent < settings_.witnesses.Majority();
  }
  if (!want) return;
  asked_store_ = now;
  out->events.push_back({EventKind::kConfirmInStore, kNoNode, settings_.term, 0});
}

void CoordinatorLease::Announce(Nanos now, Output* out) {
  if (!settings_.inherited || deposed_ || now < next_announce_) return;
  const Times& times = settings_.times;
  const bool fresh = now - settings_.taken_at < 5 * times.silence;
  next_announce_ = now + (fresh ? times.beat / 2 : 5 * times.beat);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    // A musterd that goes before it has a link comes back with the coordinator that it knew before.
    const bool gone = n.watched && !n.silent && now - n.heard > times.silence;
    if (n.removed || (n.beaten && !gone)) continue;
    Datagram lead = Make(Type::kLead, static_cast<NodeIndex>(i), now);
    lead.witnesses = settings_.witnesses;
    out->sends.push_back({static_cast<NodeIndex>(i), false, false, lead});
  }
}

// After a pause, what the nodes sent meanwhile may be lost: they get a whole silence again.
void CoordinatorLease::NoticePause(Nanos now) {
  if (now - next_tick_ > settings_.times.beat) awake_since_ = now;
}

void CoordinatorLease::Tick(Nanos now, Output* out) {
  NoticePause(now);
  last_tick_ = now;
  SettleFormer(now);
  SettleHeardBefore(now);
  UpdateQuorum(now, out);
  FindSilent(now, out);
  WantStore(now, out);
  Announce(now, out);
  next_tick_ = now + settings_.times.beat / (Calm(now) ? 2 : 4);
}

// Whether nothing is to be concluded within half a beat from now, whatever happens: everybody has been heard just now,
// and a majority's stamps, the next thing that could grow too old (WantStore), have more time left than that.
bool CoordinatorLease::Calm(Nanos now) const {
  if (deposed_) return true;
  const Times& times = settings_.times;
  if (settings_.inherited && (!former_settled_ || now - settings_.taken_at < 5 * times.silence)) return false;
  if (SentSince(now - times.lease * 3 / 4 + times.beat / 2) < settings_.witnesses.Majority()) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& n) {
    return !n.watched || n.silent || now - n.heard <= times.beat + times.beat / 4;
  });
}

bool CoordinatorLease::Settled() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const Node& n) { return !n.watched || n.beaten || n.silent; });
}

}  // namespace muster::lease
