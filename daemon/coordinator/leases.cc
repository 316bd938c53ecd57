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
#include "daemon/link/link.h"

namespace muster {
namespace {

constexpr auto kProbeTimeout = std::chrono::milliseconds(200);
constexpr auto kProbeEvery = std::chrono::milliseconds(100);
constexpr auto kRaiseRetry = std::chrono::milliseconds(300);

}  // namespace

// `found`: what the record of the coordinator before says of its term; none: no member has run.
void Coordinator::BeginLeases(const std::optional<Terms::Found>& found) {
  if (context_.beat == nullptr) return;
  beat_key_ = origin_.key.empty() ? MakeBeatKey() : origin_.key;
  terms_.Take({origin_.promised, origin_.closed, asked_at_, clock_->Now()}, found, *gang_, Here());
}

std::set<uint32_t> Coordinator::Here() const {
  std::set<uint32_t> here;
  for (const auto& [node, agent] : agents_) {
    if (agent.link) here.insert(node);
  }
  return here;
}

// Behind the record that names the witnesses: whoever comes next must know whom to ask. And names may take their time to
// resolve.
void Coordinator::LeadWhenDurable() {
  if (context_.beat == nullptr) return;
  worker_->Do([weak = weak_from_this(), hosts = job_.hosts, port = static_cast<uint16_t>(config_.port),
               &loop = loop_] {
    loop.Post([weak, addresses = ResolveBeatAddresses(hosts, port)]() mutable {
      const auto self = weak.lock();
      if (!self) return;
      self->addresses_ = std::move(addresses);
      self->Lead();
    });
  });
}

void Coordinator::Lead() {
  if (fence_.lost() || !gang_) return;
  leadership_.reset();
  const lease::LeadSettings& lead = terms_.Lead(fence_.term(), *gang_);
  leadership_ = context_.beat->Lead({job_.Unique(), beat_key_, addresses_, lead}, MakeLeadEvents());
  for (const auto& [node, agent] : agents_) {
    if (agent.link && !agent.name.empty()) Attend(node);
  }
  // Those that have come and gone before there was a lease: they are waited for no longer than others.
  for (const lease::NodeIndex node : lead.inherited ? std::vector<lease::NodeIndex>() : Terms::Away(*gang_)) {
    leadership_->NodeAttached(node);
    leadership_->NodeClosed(node);
  }
  if (lead.inherited) Probe();
  ProbeAbsent();
  Feed(gang::Leads{});
}

// Nodes of an earlier term that have not been heard yet, or have no link yet: where the port refuses, the host lives and its
// musterd does not, and its members run on for `reconnect`.
void Coordinator::Probe() {
  loop_.Cancel(std::exchange(probe_timer_, 0));
  std::vector<lease::NodeIndex> nodes;
  std::vector<BeatAddress> addresses;
  for (const lease::NodeIndex node : terms_.Unheard(*gang_)) {
    if (node >= addresses_.size()) continue;
    nodes.push_back(node);
    addresses.push_back(addresses_[node]);
  }
  if (nodes.empty()) return;
  if (!prober_) prober_ = std::make_unique<Worker>();
  prober_->Do([weak = weak_from_this(), nodes = std::move(nodes), addresses = std::move(addresses),
               term = fence_.term(), &loop = loop_] {
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
  if (fence_.lost() || !leadership_ || term != fence_.term()) return;
  for (const lease::NodeIndex node : closed) {
    if (gang_->nodes()[node].lost) continue;
    if (const auto agent = agents_.find(node); agent != agents_.end() && agent->second.link) continue;
    terms_.Refuses(node);
    leadership_->NodeClosed(node);
  }
  probe_timer_ = loop_.After(kProbeEvery, [this] {
    probe_timer_ = 0;
    if (leadership_) Probe();
  });
}

LeadEvents Coordinator::MakeLeadEvents() {
  LeadEvents events;
  events.heard = [this](uint32_t node) {
    terms_.Heard(node, *gang_);
    MaybeRaise();
  };
  events.silent = [this](uint32_t node) {
    gang::NodeSilent silent{node, RealtimeNs() - config_.silence_ms * 1'000'000};
    if (node >= gang_->nodes().size()) return;
    terms_.Wait(clock_->Now());
    Feed(silent);
    if (!fence_.lost() && gang_->nodes()[node].lost) CloseLost(node);
  };
  events.stopped = [this](uint32_t node, uint64_t generation) {
    // Its link may be gone: then this is how it is known.
    if (generation >= gang_->generation() && node < gang_->nodes().size() && !gang_->nodes()[node].present)
      Feed(gang::NodeStopped{node, gang_->generation(), 0, 0});
  };
  events.quorum = [this] {
    terms_.SetQuorum(true);
    MaybeSendFinish();
    MaybeRaise();
    if (gang_->state() != gang::State::kFinished)
      AddHistory("quorum", "most of the gang's witnesses are heard");
  };
  events.lost_quorum = [this] {
    terms_.SetQuorum(false);
    // Of a gang that has ended nobody is to be heard any more.
    if (gang_->state() == gang::State::kFinished || gang_->state() == gang::State::kRequeueing) return;
    AddHistory("quorum_lost", "most of the gang's witnesses are not heard: nobody's lease is renewed");
  };
  events.confirm_in_store = [this] { ConfirmInStore(); };
  events.term_spent = [this] { RaiseTerm(); };
  events.deposed = [this](uint64_t term) {
    terms_.SetQuorum(false);  // nothing more comes of it
    if (fence_.Seen(term)) Deposed(fence_.Newer());
  };
  return events;
}

// The answer to a registration: from now on its beats count, unless the first record is still being written.
void Coordinator::Attend(uint32_t node) {
  const auto found = agents_.find(node);
  if (found == agents_.end() || !found->second.link) return;
  if (!leadership_) return Send(node, NewMessage());  // only that somebody is here
  leadership_->NodeAttached(node);
  auto message = NewMessage();
  v1::Attended* attended = message.mutable_attended();
  const std::string context = fmt::format("{} {}", job_.Id(), fence_.term());
  attended->set_wrapped_key(WrapKey(found->second.link->key(), beat_key_, context));
  attended->set_coordinator(terms_.lead().self);
  for (const lease::NodeIndex witness : terms_.lead().witnesses) attended->add_witnesses(witness);
  for (const uint32_t candidate : job_.CandidateNodes()) attended->add_candidates(candidate);
  Send(node, message);
}

// Should it come back, it is to say again where it is: its link may have outlived the silence.
void Coordinator::CloseLost(uint32_t node) {
  Agent& agent = agents_[node];
  if (agent.link) std::exchange(agent.link, nullptr)->Close("this node was silent for too long");
  LeaseRemoved(node);
  MaybeOver();
}

void Coordinator::LeaseRemoved(uint32_t node) {
  if (leadership_) leadership_->NodeRemoved(node);
}

void Coordinator::LeaseStop(uint64_t generation) {
  if (leadership_) leadership_->SetStop(generation);
  terms_.SetStop(generation);
}

void Coordinator::ConfirmInStore() {
  // Not behind what the worker may be stuck with: it has the store's own time limit, and is asked again.
  if (confirming_) return;
  confirming_ = true;
  context_.reader->Do([weak = weak_from_this(), catalog = catalog_, clock = clock_, &loop = loop_] {
    const lease::Nanos asked = clock->Now();
    const Result<GangHead> head = catalog->Load();
    loop.Post([weak, head, asked] {
      const auto self = weak.lock();
      if (!self) return;
      self->confirming_ = false;
      if (!head || !self->leadership_) return;
      if (head->fence.term == self->fence_.term()) return self->leadership_->StoreConfirmed(asked);
      if (self->fence_.Seen(head->fence.term)) self->leadership_->Depose(head->fence.term);
    });
  });
}

// ---- terms

void Coordinator::MaybeRaise() {
  loop_.Cancel(std::exchange(raise_timer_, 0));
  const auto at = leadership_ && !fence_.lost() ? terms_.RaiseAt(*gang_) : std::nullopt;
  if (!at) return;
  const std::chrono::nanoseconds in(*at - clock_->Now());
  if (in.count() <= 0) return RaiseTerm();
  raise_timer_ = loop_.After(std::chrono::ceil<std::chrono::milliseconds>(in), [this] {
    raise_timer_ = 0;
    MaybeRaise();
  });
}

// A new term of the same coordinator: some node cannot come back in this one, or other nodes are to be witnesses.
void Coordinator::RaiseTerm() {
  const auto advance = fence_.Raise();
  if (!advance) return;
  asked_at_ = clock_->Now();
  GangRecord record = Record();
  record.term = advance->to.term;
  SetWitnesses(terms_.Next(*gang_), &record);
  worker_->Do([weak = weak_from_this(), mine = fence_.Mine(), catalog = catalog_, from = advance->from,
               to = advance->to, text = record.Encode(), &loop = loop_] {
    const Status raised = catalog->AdvanceForSure(from, to, text, [&](const Error&) {
      if (!mine()) return false;
      std::this_thread::sleep_for(kRaiseRetry);
      return mine();
    });
    loop.Post([weak, raised] {
      if (const auto self = weak.lock()) self->TermRaised(raised);
    });
  });
}

void Coordinator::TermRaised(const Status& raised) {
  if (fence_.lost()) return;
  const RecordFence::Raised what = fence_.RaiseOver(raised.ok());
  if (!what.begun) {
    AddHistory("term", fmt::format("the term was not raised: {}", raised.error().message));
    if (what.owed) Do(gang::Persist{});
    CommitWaiting();
    // The lease says it once.
    if (what.overtaken) return Deposed(fence_.Newer());
    terms_.Wait(clock_->Now());  // it is tried again after a while
    MaybeOver();
    // Whether it was written is not known when the store did not answer: reading tells.
    return ConfirmInStore();
  }
  if (what.overtaken) return Deposed(fence_.Newer());
  AddHistory("term", fmt::format("term {} begins", fence_.term()));
  terms_.Raised(asked_at_, clock_->Now(), *gang_);
  Lead();
  // The beats of a lost node do not count before it has registered, as in the term before.
  for (uint32_t node = 0; node < gang_->nodes().size(); ++node) {
    if (gang_->nodes()[node].lost) LeaseRemoved(node);
  }
  Do(gang::Persist{});
  Carry(gang_->SayAgain());
  CommitWaiting();
  MaybeOver();
}

}  // namespace muster
