// Which nodes live: this coordinator's side of daemon/lease, and the terms that go with it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "daemon/beat/key.h"
#include "daemon/beat/probe.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/record_of_gang.h"

namespace muster {
namespace {

constexpr auto kProbeTimeout = std::chrono::milliseconds(200);
constexpr auto kProbeEvery = std::chrono::milliseconds(100);
constexpr auto kRaiseRetry = std::chrono::milliseconds(300);

}  // namespace

// Behind the record that names the witnesses: whoever comes next must know whom to ask. And names may take their time to
// resolve.
void Coordinator::LeadWhenDurable() {
  if (context_.beat == nullptr) return;
  worker_.Do([weak = weak_from_this(), hosts = job_.hosts, port = static_cast<uint16_t>(config_.port),
              &loop = loop_] {
    loop.Post([weak, addresses = ResolveBeatAddresses(hosts, port)]() mutable {
      const auto self = weak.lock();
      if (!self) return;
      self->addresses_ = std::move(addresses);
      self->core_.Lead();
    });
  });
}

void Coordinator::Lead(const lease::LeadSettings& settings) {
  leadership_.reset();
  leadership_ = context_.beat->Lead({job_.Unique(), beat_key_, addresses_, settings}, MakeLeadEvents());
  for (const uint32_t node : nodes_.Here()) {
    if (!nodes_.NameOf(node).empty()) Attend(node);
  }
}

// Nodes of an earlier term that have not been heard yet, or have no link yet: where the port refuses, the host lives and its
// musterd does not, and its members run on for `reconnect`.
void Coordinator::Probe() {
  loop_.Cancel(std::exchange(probe_timer_, 0));
  std::vector<lease::NodeIndex> nodes;
  std::vector<BeatAddress> addresses;
  for (const lease::NodeIndex node : core_.terms().Unheard(core_.gang())) {
    if (node >= addresses_.size()) continue;
    nodes.push_back(node);
    addresses.push_back(addresses_[node]);
  }
  if (nodes.empty()) return;
  if (!prober_) prober_ = std::make_unique<Worker>();
  prober_->Do([weak = weak_from_this(), nodes = std::move(nodes), addresses = std::move(addresses),
               term = core_.fence().term(), &loop = loop_] {
    std::vector<lease::NodeIndex> closed;
    const std::vector<Port> ports = ProbePorts(addresses, kProbeTimeout);
    for (size_t i = 0; i < ports.size(); ++i) {
      if (ports[i] == Port::kRefuses) closed.push_back(nodes[i]);
    }
    loop.Post([weak, closed = std::move(closed), term] {
      if (const auto self = weak.lock()) self->Probed(closed, term);
    });
  });
}

void Coordinator::Probed(const std::vector<lease::NodeIndex>& closed, uint64_t term) {
  if (core_.lost() || !leadership_ || term != core_.fence().term()) return;
  for (const lease::NodeIndex node : closed) {
    if (!nodes_.Of(node)) core_.Refuses(node);
  }
  probe_timer_ = loop_.After(kProbeEvery, [this] {
    probe_timer_ = 0;
    if (leadership_) Probe();
  });
}

LeadEvents Coordinator::MakeLeadEvents() {
  LeadEvents events;
  events.heard = [this](uint32_t node) { core_.Heard(node); };
  events.silent = [this](uint32_t node) {
    core_.Silent({node, RealtimeNs() - config_.silence_ms * 1'000'000});
  };
  events.stopped = [this](uint32_t node, uint64_t generation) { core_.Stopped(node, generation); };
  events.quorum = [this] { core_.SetQuorum(true); };
  events.lost_quorum = [this] { core_.SetQuorum(false); };
  events.confirm_in_store = [this] { AskTerm(); };
  events.term_spent = [this] { core_.RaiseTerm(); };
  events.deposed = [this](uint64_t term) { core_.SeenTerm(term); };
  return events;
}

// The answer to a registration: from now on its beats count, unless the first record is still being written.
void Coordinator::Attend(uint32_t node) {
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

void Coordinator::CloseLink(uint32_t node) {
  nodes_.Close(node, "this node was silent for too long");
}

lease::Nanos Coordinator::Now() const {
  return clock_->Now();
}

void Coordinator::NodeAttached(uint32_t node) {
  if (leadership_) leadership_->NodeAttached(node);
}

void Coordinator::NodeClosed(uint32_t node) {
  if (leadership_) leadership_->NodeClosed(node);
}

void Coordinator::NodeRemoved(uint32_t node) {
  if (leadership_) leadership_->NodeRemoved(node);
}

void Coordinator::SetStop(uint64_t generation) {
  if (leadership_) leadership_->SetStop(generation);
}

void Coordinator::StoreConfirmed(lease::Nanos asked_at) {
  if (leadership_) leadership_->StoreConfirmed(asked_at);
}

void Coordinator::Depose(uint64_t term) {
  if (leadership_) leadership_->Depose(term);
}

void Coordinator::ReadHead(std::function<void(const Result<GangHead>&, lease::Nanos)> then) {
  context_.reader->Do(
      [weak = weak_from_this(), catalog = catalog_, clock = clock_, then = std::move(then), &loop = loop_] {
        const lease::Nanos asked_at = clock->Now();
        const Result<GangHead> head = catalog->Load();
        loop.Post([weak, head, asked_at, then] {
          if (const auto self = weak.lock()) then(head, asked_at);
        });
      });
}

void Coordinator::AskTerm() {
  if (confirming_) return;
  confirming_ = true;
  ReadHead([this](const Result<GangHead>& head, lease::Nanos asked_at) {
    confirming_ = false;
    if (head) core_.StoreHasTerm(head->fence.term, asked_at);
  });
}

void Coordinator::RaiseAt(std::optional<lease::Nanos> at) {
  loop_.Cancel(std::exchange(raise_timer_, 0));
  if (!at) return;
  const std::chrono::nanoseconds in(*at - clock_->Now());
  raise_timer_ = loop_.After(std::chrono::ceil<std::chrono::milliseconds>(in), [this] {
    raise_timer_ = 0;
    core_.MaybeRaise();
  });
}

void Coordinator::WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) {
  GangRecord record = Record();
  record.term = advance.to.term;
  SetWitnesses(sets, &record);
  worker_.Do([weak = weak_from_this(), mine = core_.fence().Mine(), catalog = catalog_, advance,
              text = record.Encode(), &loop = loop_] {
    const Status raised = catalog->AdvanceForSure(advance.from, advance.to, text, [&](const Error&) {
      if (!mine()) return false;
      std::this_thread::sleep_for(kRaiseRetry);
      return mine();
    });
    loop.Post([weak, raised] {
      if (const auto self = weak.lock()) self->core_.TermRaised(raised);
    });
  });
}

}  // namespace muster
