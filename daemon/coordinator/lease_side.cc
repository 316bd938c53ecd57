#include "daemon/coordinator/lease_side.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "daemon/beat/key.h"

namespace muster {
namespace {

constexpr auto kProbeTimeout = std::chrono::milliseconds(200);
constexpr auto kProbeEvery = std::chrono::milliseconds(100);
// For nodes that have not joined.
constexpr auto kAbsentTimeout = std::chrono::milliseconds(1000);
constexpr auto kAbsentEvery = std::chrono::milliseconds(500);
constexpr uint32_t kSilentRounds = 3;  // a packet may be lost
constexpr size_t kMostAbsent = 256;    // when more are missing they have just not come yet

}  // namespace

LeaseSide::LeaseSide(Loop& loop, Beat* beat, std::shared_ptr<const BeatClock> clock, const GangJob& job,
                     CoordinatorCore& core, const NodeLinks& nodes, Settings settings,
                     std::function<void()> ask_term)
    : beat_(beat),
      clock_(std::move(clock)),
      job_(job),
      core_(core),
      nodes_(nodes),
      settings_(std::move(settings)),
      ask_term_(std::move(ask_term)),
      probe_timer_(loop),
      absent_timer_(loop),
      raise_timer_(loop),
      calls_(loop) {}

void LeaseSide::Take(const std::string& key) {
  if (beat_ != nullptr) beat_key_ = key.empty() ? MakeBeatKey() : key;
}

// Names may take their time to resolve.
void LeaseSide::LeadBehind(Worker& records) {
  if (beat_ == nullptr) return;
  auto resolved = calls_.Back([this](std::vector<BeatAddress> addresses) {
    addresses_ = std::move(addresses);
    core_.Lead();
  });
  records.Do([resolved = std::move(resolved), hosts = job_.hosts, port = settings_.port] {
    resolved(ResolveBeatAddresses(hosts, port));
  });
}

Worker& LeaseSide::Prober() {
  if (!prober_) prober_ = std::make_unique<Worker>();
  return *prober_;
}

std::function<void()> LeaseSide::AtTheEnd(std::function<void()> then) const {
  if (!prober_) return then;
  return [worker = prober_.get(), then = std::move(then)] { worker->Do(then); };
}

void LeaseSide::Lead(const lease::LeadSettings& settings) {
  silent_rounds_.clear();
  leadership_.reset();
  leadership_ = beat_->Lead({job_.Unique(), beat_key_, addresses_, settings}, MakeLeadEvents());
  for (const uint32_t node : nodes_.Here()) {
    if (!nodes_.NameOf(node).empty()) Attend(node);
  }
}

// Nodes of an earlier term that have not been heard yet, or have no link yet: where the port refuses, the host lives and its
// musterd does not, and its members run on for `reconnect`.
void LeaseSide::Probe() {
  probe_timer_.Cancel();
  std::vector<lease::NodeIndex> nodes;
  std::vector<BeatAddress> addresses;
  for (const lease::NodeIndex node : core_.terms().Unheard(core_.gang())) {
    if (node >= addresses_.size()) continue;
    nodes.push_back(node);
    addresses.push_back(addresses_[node]);
  }
  if (nodes.empty()) return;
  auto probed = calls_.Back([this, term = core_.fence().term()](const std::vector<lease::NodeIndex>& closed) {
    Probed(closed, term);
  });
  Prober().Do([probed = std::move(probed), probe = settings_.probe, nodes = std::move(nodes),
               addresses = std::move(addresses)] {
    std::vector<lease::NodeIndex> closed;
    const std::vector<Port> ports = probe(addresses, kProbeTimeout);
    for (size_t i = 0; i < ports.size(); ++i) {
      if (ports[i] == Port::kRefuses) closed.push_back(nodes[i]);
    }
    probed(std::move(closed));
  });
}

void LeaseSide::Probed(const std::vector<lease::NodeIndex>& closed, uint64_t term) {
  if (core_.lost() || !leadership_ || term != core_.fence().term()) return;
  for (const lease::NodeIndex node : closed) {
    if (!nodes_.Of(node)) core_.Refuses(node);
  }
  probe_timer_.After(kProbeEvery, [this] {
    if (leadership_) Probe();
  });
}

LeadEvents LeaseSide::MakeLeadEvents() {
  LeadEvents events;
  events.heard = [this](uint32_t node) { core_.Heard(node); };
  events.silent = [this](uint32_t node) {
    core_.Silent({node, RealtimeNs() - settings_.silence_ms * 1'000'000});
  };
  events.stopped = [this](uint32_t node, uint64_t generation) { core_.Stopped(node, generation); };
  events.quorum = [this] { core_.SetQuorum(true); };
  events.lost_quorum = [this] { core_.SetQuorum(false); };
  events.confirm_in_store = ask_term_;
  events.term_spent = [this] { core_.RaiseTerm(); };
  events.deposed = [this](uint64_t term) { core_.SeenTerm(term); };
  return events;
}

// The answer to a registration: from now on its beats count, unless the first record is still being written.
void LeaseSide::Attend(uint32_t node) {
  const auto link = nodes_.Of(node);
  if (!link) return;
  if (!leadership_) return nodes_.Send(node, nodes_.NewMessage());  // only that somebody is here
  leadership_->NodeAttached(node);
  auto message = nodes_.NewMessage();
  v1::Attended* attended = message.mutable_attended();
  const std::string context = fmt::format("{} {}", job_.Id(), core_.fence().term());
  attended->set_wrapped_key(WrapKey(link->key(), beat_key_, context));
  attended->set_coordinator(core_.terms().lead().self);
  for (const lease::NodeIndex witness : core_.terms().lead().witnesses) attended->add_witnesses(witness);
  for (const uint32_t candidate : job_.CandidateNodes()) attended->add_candidates(candidate);
  nodes_.Send(node, message);
}

void LeaseSide::NodeAttached(uint32_t node) {
  if (leadership_) leadership_->NodeAttached(node);
}

void LeaseSide::NodeClosed(uint32_t node) {
  if (leadership_) leadership_->NodeClosed(node);
}

void LeaseSide::NodeRemoved(uint32_t node) {
  if (leadership_) leadership_->NodeRemoved(node);
}

void LeaseSide::SetStop(uint64_t generation) {
  if (leadership_) leadership_->SetStop(generation);
}

void LeaseSide::StoreConfirmed(lease::Nanos asked_at) {
  if (leadership_) leadership_->StoreConfirmed(asked_at);
}

void LeaseSide::Depose(uint64_t term) {
  if (leadership_) leadership_->Depose(term);
}

void LeaseSide::RaiseAt(std::optional<lease::Nanos> at) {
  raise_timer_.Cancel();
  if (!at) return;
  const std::chrono::nanoseconds in(*at - clock_->Now());
  raise_timer_.After(std::chrono::ceil<std::chrono::milliseconds>(in), [this] { core_.MaybeRaise(); });
}

// Who is missing while a gang joins: a node that Slurm takes to be alive may be dead.
void LeaseSide::ProbeAbsent() {
  absent_timer_.Cancel();
  if (!core_.active() || core_.gang().state() != gang::State::kJoining) return;
  std::vector<uint32_t> nodes;
  std::vector<BeatAddress> addresses;
  for (uint32_t node = 0; node < core_.gang().nodes().size() && node < addresses_.size(); ++node) {
    const gang::Gang::Node& n = core_.gang().nodes()[node];
    if (n.joined || n.lost) continue;
    nodes.push_back(node);
    addresses.push_back(addresses_[node]);
  }
  if (nodes.empty()) return;
  if (nodes.size() > kMostAbsent) return ProbeAbsentLater();
  auto probed = calls_.Back([this, term = core_.fence().term()](const std::map<uint32_t, Port>& ports) {
    AbsentProbed(ports, term);
  });
  Prober().Do([probed = std::move(probed), probe = settings_.probe, nodes = std::move(nodes),
               addresses = std::move(addresses)] {
    std::map<uint32_t, Port> ports;
    const std::vector<Port> found = probe(addresses, kAbsentTimeout);
    for (size_t i = 0; i < nodes.size(); ++i) ports[nodes[i]] = found[i];
    probed(std::move(ports));
  });
}

// Says what is certain when it is of all of them: each has answered now, or has been silent often enough. Each term asks anew.
void LeaseSide::AbsentProbed(const std::map<uint32_t, Port>& ports, uint64_t term) {
  if (core_.lost() || term != core_.fence().term() || core_.gang().state() != gang::State::kJoining) return;
  gang::AbsentProbed probed;
  bool certain = true;
  for (const auto& [node, port] : ports) {
    if (core_.gang().nodes()[node].joined) continue;
    uint32_t& rounds = silent_rounds_[node];
    rounds = port == Port::kSilent ? rounds + 1 : 0;
    if (rounds >= kSilentRounds) {
      probed.dead.push_back(node);
    } else if (rounds > 0 || port == Port::kUnknown) {
      certain = false;
    }
  }
  if (certain) core_.Feed(probed);
  ProbeAbsentLater();
}

void LeaseSide::ProbeAbsentLater() {
  absent_timer_.After(kAbsentEvery, [this] { ProbeAbsent(); });
}

}  // namespace muster
