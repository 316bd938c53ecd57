// Coordinator's side of the leases, and the terms that go with it: daemon/coordinator/leases.cc.
#include <algorithm>
#include <utility>

#include "base/planted.h"
#include "daemon/coordinator/record_of_gang.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kAbsent = 2'200 * kMs;

}  // namespace

void Coordinator::BeginLeases(const std::optional<Terms::Found>& found) {
  terms_.Take({.promised = origin_.promised,
               .closed = origin_.closed,
               .asked_at = asked_at_,
               .taken_at = daemon_.host.Local()},
              found, *gang_, Here());
}

std::set<uint32_t> Coordinator::Here() const {
  std::set<uint32_t> here;
  for (const auto& [node, link] : links_) here.insert(node);
  return here;
}

void Coordinator::Lead() {
  lease::LeadSettings settings = terms_.Lead(fence_.term(), *gang_);
  settings.times = daemon_.sim.options.times;
  settings.gang = 1;
  settings.nodes = gang_->nodes().size();
  settings.first_sequence = static_cast<uint64_t>(world_.now()) + 1;
  world_.Log("n{} leads, term {}: {} watched, {} witnesses, {} former sets", daemon_.host.index(),
             fence_.term(), settings.watched.size(), settings.witnesses.size(), settings.former.size());
  daemon_.Lead(settings);
  for (const uint32_t node : registered_) Attend(node);
  // Those that have come and gone before there was a lease.
  for (const lease::NodeIndex node :
       settings.inherited ? std::vector<lease::NodeIndex>() : Terms::Away(*gang_)) {
    daemon_.lead()->NodeAttached(node, daemon_.host.Local());
    daemon_.lead()->NodeClosed(node, daemon_.host.Local());
  }
  if (settings.inherited) Probe();
  ProbeAbsent();
  Feed(gang::Leads{});
}

// Nodes that have not joined: dead ones do not answer.
void Coordinator::ProbeAbsent() {
  if (!Leads() || gang_->state() != gang::State::kJoining) return;
  gang::AbsentProbed probed;
  bool certain = true;
  bool any = false;
  for (uint32_t node = 0; node < gang_->nodes().size(); ++node) {
    const Host& host = *daemon_.sim.hosts[node];
    if (gang_->nodes()[node].joined || gang_->nodes()[node].lost) continue;
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
  Post(500 * kMs, [this, term = fence_.term()] {
    if (Leads() && fence_.term() == term) ProbeAbsent();
  });
}

// A node of an earlier term that has not been heard: where the port refuses, the host lives and its musterd does not, and
// its supervisors wait for `reconnect`.
void Coordinator::Probe() {
  if (daemon_.lead() == nullptr || daemon_.lead()->term() != fence_.term()) return;
  const std::vector<lease::NodeIndex> nodes = terms_.Unheard(*gang_);
  for (const lease::NodeIndex node : nodes) {
    const Host& host = *daemon_.sim.hosts[node];
    if (host.crashed() || host.Frozen() || host.daemon() != nullptr) continue;
    if (!daemon_.sim.network.Joined(host.index(), daemon_.host.index())) continue;
    terms_.Refuses(node);
    daemon_.lead()->NodeClosed(node, daemon_.host.Local());
  }
  if (nodes.empty()) return;
  Post(100 * kMs, [this, term = fence_.term()] {
    if (Leads() && fence_.term() == term) Probe();
  });
}

void Coordinator::Attend(uint32_t node) {
  if (daemon_.lead() == nullptr || !links_.contains(node)) return;
  daemon_.lead()->NodeAttached(static_cast<lease::NodeIndex>(node), daemon_.host.Local());
  Send(node, fence_.term(), Attended{daemon_.host.index(), terms_.lead().witnesses});
}

void Coordinator::OnLease(const lease::Event& event) {
  if (!Leads() || (event.term != fence_.term() && event.kind != lease::EventKind::kDeposed)) return;
  switch (event.kind) {
    case lease::EventKind::kHeard:
      terms_.Heard(event.node, *gang_);
      return MaybeRaise();
    case lease::EventKind::kSilent:
      daemon_.sim.invariants.Silent(event.node, fence_.term(), daemon_.host);
      terms_.Wait(daemon_.host.Local());
      Feed(gang::NodeSilent{event.node, world_.now()});
      return CloseLost(event.node);
    case lease::EventKind::kStopped:
      if (event.generation >= gang_->generation() && !gang_->nodes()[event.node].present)
        Feed(gang::NodeStopped{event.node, gang_->generation()});
      return;
    case lease::EventKind::kConfirmInStore:
      return ConfirmInStore();
    case lease::EventKind::kTermSpent:
      return RaiseTerm();
    case lease::EventKind::kDeposed:
      terms_.SetQuorum(false);
      if (fence_.Seen(event.term)) Deposed();
      return;
    case lease::EventKind::kQuorum:
      terms_.SetQuorum(true);
      MaybeSendFinish();
      return MaybeRaise();
    case lease::EventKind::kLostQuorum:
      terms_.SetQuorum(false);
      return;
    default:
      return;
  }
}

// Should it come back, it is to say again where it is: its link may have outlived the silence.
void Coordinator::CloseLost(uint32_t node) {
  if (!Leads() || !gang_->nodes()[node].lost || MUSTER_PLANTED(silent_keeps_link)) return;
  daemon_.lead()->NodeRemoved(static_cast<lease::NodeIndex>(node));
  if (const auto link = links_.extract(node)) link.mapped()->Close(kCoordinatorEnd);
  MaybeOver();
}

void Coordinator::ConfirmInStore() {
  if (std::exchange(confirming_, true)) return;
  Look([this, asked = daemon_.host.Local()](Store::Answer answer, const Store::Head& head) {
    confirming_ = false;
    if (answer != Store::Answer::kDone || daemon_.lead() == nullptr) return;
    lease::Output out;
    if (head.fence.term == fence_.term()) daemon_.lead()->StoreConfirmed(asked, daemon_.host.Local(), &out);
    if (fence_.Seen(head.fence.term)) daemon_.lead()->Depose(head.fence.term, &out);
    daemon_.Pump(&out);
  });
}

// ---- terms

void Coordinator::MaybeRaise() {
  const uint64_t number = ++raise_timer_;
  const auto at = Leads() && daemon_.lead() != nullptr ? terms_.RaiseAt(*gang_) : std::nullopt;
  if (!at) return;
  if (*at <= daemon_.host.Local()) return RaiseTerm();
  Post(*at - daemon_.host.Local(), [this, number] {
    if (number == raise_timer_) MaybeRaise();
  });
}

void Coordinator::RaiseTerm() {
  const auto advance = fence_.Raise();
  if (!advance) return;
  asked_at_ = daemon_.host.Local();
  auto record = std::make_shared<GangRecord>(Record());
  record->term = advance->to.term;
  SetWitnesses(terms_.Next(*gang_), record.get());
  Queue(records_, [this, from = advance->from, to = advance->to, record](const std::function<void()>& done) {
    AdvanceForSure(
        {from, to, record}, [this] { return !fence_.lost() && !MUSTER_PLANTED(raise_asked_once); },
        [this, done](Store::Answer answer, Nanos /*asked*/, const Store::Head& /*head*/) {
          TermRaised(answer == Store::Answer::kDone);
          done();
        });
  });
}

void Coordinator::TermRaised(bool raised) {
  if (fence_.lost()) return;
  const RecordFence::Raised what = fence_.RaiseOver(raised);
  if (!what.begun) {
    if (what.owed) Do(gang::Persist{});
    CommitWaiting();
    if (what.overtaken) return Deposed();
    terms_.Wait(daemon_.host.Local());
    MaybeOver();
    return ConfirmInStore();
  }
  if (what.overtaken) return Deposed();
  world_.Log("n{}: term {} begins", daemon_.host.index(), fence_.term());
  daemon_.sim.invariants.Coordinates(fence_.term(), origin_.promised);
  terms_.Raised(asked_at_, daemon_.host.Local(), *gang_);
  Lead();
  // The beats of a lost node do not count before it has registered, as in the term before.
  for (lease::NodeIndex node = 0; node < gang_->nodes().size(); ++node) {
    if (gang_->nodes()[node].lost) daemon_.lead()->NodeRemoved(node);
  }
  Do(gang::Persist{});
  Carry(gang_->SayAgain());
  CommitWaiting();
  MaybeOver();
}

}  // namespace muster::sim
