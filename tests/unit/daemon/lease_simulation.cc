#include "tests/unit/daemon/lease_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::lease {
namespace {

constexpr uint64_t kGang = 7;

const char* Name(EventKind kind) {
  static constexpr const char* kNames[] = {
      "attended", "fence",   "abandoned",   "claim",  "take over",        "successor",  "stop",   "heard",
      "silent",   "stopped", "lost quorum", "quorum", "confirm in store", "term spent", "deposed"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

LeaseSimulation::LeaseSimulation(uint64_t seed, size_t nodes, bool trace)
    : random_(seed), tracing_(trace), cut_(nodes, std::vector<bool>(nodes)), nodes_(nodes) {
  times_.reconnect = 8'000 * kMillisecond;
  witnesses_ =
      WitnessSet::FirstOf(nodes <= 3 ? nodes : static_cast<size_t>(Pick(3, static_cast<int64_t>(nodes))));
  std::vector<NodeIndex> candidates;
  for (size_t i = 0; i < nodes; ++i) candidates.push_back(static_cast<NodeIndex>((i + 1) % nodes));
  leader_ = candidates[0];
  for (size_t i = 0; i < nodes; ++i) {
    nodes_[i].offset = Pick(1, 1'000'000) * kMillisecond;
    AgentSettings settings;
    settings.times = times_;
    settings.gang = kGang;
    settings.self = static_cast<NodeIndex>(i);
    settings.candidates = candidates;
    nodes_[i].agent = std::make_unique<AgentLease>(settings);
  }
  LeadSettings lead;
  lead.times = times_;
  lead.gang = kGang;
  lead.self = static_cast<NodeIndex>(leader_);
  lead.nodes = nodes;
  lead.witnesses = witnesses_;
  nodes_[leader_].lead = std::make_unique<CoordinatorLease>(lead, Local(nodes_[leader_]));
  for (size_t i = 0; i < nodes; ++i) {
    At(Pick(0, 300) * kMillisecond, [this, i] {
      Output out;
      if (!Awake(nodes_[i]) || !nodes_[leader_].lead || store_term_ != 1) return;
      nodes_[leader_].lead->NodeAttached(static_cast<NodeIndex>(i), Local(nodes_[leader_]));
      nodes_[i].agent->Follow(1, static_cast<NodeIndex>(leader_), witnesses_, Source::kLink, Local(nodes_[i]),
                              &out);
      Carry(i, &out, i);
      Schedule(i);
    });
  }
  Schedule(leader_);
}

LeaseSimulation::~LeaseSimulation() = default;

int64_t LeaseSimulation::Pick(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_);
}

bool LeaseSimulation::Chance(double part) {
  return std::uniform_real_distribution<double>(0, 1)(random_) < part;
}

void LeaseSimulation::Log(const std::string& line) {
  if (tracing_) trace_ += fmt::format("{:9.1f} ms  {}\n", static_cast<double>(now_) / kMillisecond, line);
}

void LeaseSimulation::At(Nanos delay, std::function<void()> what) {
  later_.push({now_ + delay, order_++, std::move(what)});
}

void LeaseSimulation::RunFor(Nanos length) {
  const Nanos end = now_ + length;
  while (failure_.empty() && !later_.empty() && later_.top().at <= end) {
    const Later next = later_.top();
    later_.pop();
    now_ = next.at;
    next.what();
  }
  now_ = end;
}

// ---- faults

void LeaseSimulation::CutBoth(size_t a, size_t b) {
  cut_[a][b] = true;
  cut_[b][a] = true;
}

void LeaseSimulation::Pause(size_t node, Nanos length) {
  Log(fmt::format("n{} pauses for {} ms", node, length / kMillisecond));
  nodes_[node].paused_until = std::max(nodes_[node].paused_until, now_ + length);
  At(length, [this, node] { Wake(node); });
}

bool LeaseSimulation::MayDie(size_t node) const {
  if (nodes_[node].dead) return false;
  size_t left = 0;
  for (const NodeIndex witness : witnesses_) {
    if (witness != node && !nodes_[witness].dead) ++left;
  }
  return left >= (witnesses_.size() == 2 ? 1 : witnesses_.Majority());
}

void LeaseSimulation::StallLoop(size_t node, Nanos length) {
  nodes_[node].loop_stalled_until = std::max(nodes_[node].loop_stalled_until, now_ + length);
}

void LeaseSimulation::Kill(size_t node) {
  Log(fmt::format("n{} dies", node));
  nodes_[node].dead = true;
  nodes_[node].running = false;
}

void LeaseSimulation::Heal() {
  Log("all heals");
  network_ = {};
  for (auto& row : cut_) row.assign(row.size(), false);
  for (Node& node : nodes_) node.store_cut = false;
}

void LeaseSimulation::Raise() {
  if (!Awake(nodes_[leader_])) return;
  TakeOver(leader_, store_term_, false, false);
}

bool LeaseSimulation::Running(size_t index) {
  Node& node = nodes_[index];
  if (node.running && now_ >= node.beaten + times_.lease) node.running = false;  // its supervisors
  return node.running;
}

// ---- the shell

void LeaseSimulation::Schedule(size_t index) {
  Node& node = nodes_[index];
  if (node.dead) return;
  Nanos next = node.agent->NextTick();
  if (node.lead) next = std::min(next, node.lead->NextTick());
  if (next == kNever) return;
  const Nanos at = std::max(next - node.offset, now_ + kMillisecond / 2);
  if (node.next_wake > now_ && node.next_wake <= at) return;
  node.next_wake = at;
  At(at - now_, [this, index] {
    nodes_[index].next_wake = kNever;
    Wake(index);
  });
}

void LeaseSimulation::Wake(size_t index) {
  Node& node = nodes_[index];
  if (!Awake(node)) return;
  // A process that went on is handed what came meanwhile, or notices the time first: either may be.
  const bool time_first = Chance(0.5);
  Output out;
  const auto tick = [&] {
    node.agent->Tick(Local(node), &out);
    if (node.lead) node.lead->Tick(Local(node), &out);
    Carry(index, &out, index);
    out.Clear();
  };
  if (time_first) tick();
  const auto inbox = std::exchange(node.inbox, {});
  for (const auto& [datagram, from] : inbox) Handle(index, datagram, from);
  if (!time_first) tick();
  Schedule(index);
}

void LeaseSimulation::Post(size_t from, size_t to, const Datagram& datagram) {
  if (to >= nodes_.size()) return;
  if (from != to && (cut_[from][to] || Chance(network_.loss))) return;
  const int copies = from != to && Chance(network_.twice) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    Nanos delay = from == to ? 10'000 : Pick(50'000, 3'000'000);
    if (from != to && Chance(network_.late)) delay += Pick(0, network_.late_ms) * kMillisecond;
    At(delay, [this, to, datagram, from] { Deliver(to, datagram, from); });
  }
}

void LeaseSimulation::Deliver(size_t to, const Datagram& datagram, size_t from) {
  Node& node = nodes_[to];
  if (node.dead) return;
  if (!Awake(node)) {
    if (node.inbox.size() < 200) node.inbox.emplace_back(datagram, from);
    return;
  }
  Handle(to, datagram, from);
  Schedule(to);
}

void LeaseSimulation::Handle(size_t to, const Datagram& datagram, size_t from) {
  Node& node = nodes_[to];
  Output out;
  const bool reports = datagram.type == Type::kBeat || datagram.type == Type::kSpent;
  if (node.lead && (reports || datagram.term > node.lead->term())) {
    node.lead->Receive(datagram, Local(node), &out);
  }
  if (!node.lead || !reports) node.agent->Receive(datagram, Local(node), &out);
  Carry(to, &out, from);
}

void LeaseSimulation::Carry(size_t index, Output* out, size_t came_from) {
  Node& node = nodes_[index];
  const Nanos local = Local(node);
  const bool renewed = node.agent->RunUntil() > node.run_until;
  node.run_until = node.agent->RunUntil();
  if (node.agent->MayBeatSupervisors(local) && (renewed || now_ >= node.beaten + times_.beat)) {
    if (!node.running || Running(index)) node.beaten = now_;
  }
  for (const Send& send : out->sends) {
    Post(index, send.to, send.datagram);
    if (send.back && came_from != index && came_from != send.to) Post(index, came_from, send.datagram);
  }
  const auto events = std::exchange(out->events, {});
  for (const Event& event : events) {
    Log(fmt::format("n{}: {} (term {}, node {})", index, Name(event.kind), event.term,
                    static_cast<int16_t>(event.node)));
    if (event.kind >= EventKind::kHeard) {
      CarryLeadEvent(index, event);
    } else {
      CarryAgentEvent(index, event);
    }
  }
}

// ---- the owner

void LeaseSimulation::CarryAgentEvent(size_t index, const Event& event) {
  Node& node = nodes_[index];
  if (event.kind == EventKind::kFence) {
    ++fences_;
    const Nanos delay = std::max(node.loop_stalled_until - now_, Nanos{0}) + Pick(0, 20) * kMillisecond;
    At(delay, [this, index] {
      nodes_[index].running = false;
      nodes_[index].agent->Fenced();
      nodes_[index].agent->SetStopped(1);
    });
  } else if (event.kind == EventKind::kTakeOver || event.kind == EventKind::kClaim) {
    TakeOver(index, event.term, true, event.kind == EventKind::kClaim);
  }
}

void LeaseSimulation::CarryLeadEvent(size_t index, const Event& event) {
  Node& node = nodes_[index];
  switch (event.kind) {
    case EventKind::kSilent:
      ++silences_;
      // What a higher term's coordinator has started since is its own: this one can write no record any more.
      if (Running(event.node) && nodes_[event.node].started_in <= event.term) {
        failure_ = fmt::format("n{} calls n{} silent in term {} at {} ms, and its members run", index,
                               event.node, event.term, now_ / kMillisecond);
      }
      break;
    case EventKind::kConfirmInStore:
      Confirm(index);
      break;
    case EventKind::kTermSpent:
      TakeOver(index, event.term, false, false);
      break;
    case EventKind::kHeard:
      Register(index, event.node, event.term);
      At(Pick(0, 300) * kMillisecond, [this, index] { StartMembers(index); });
      break;
    case EventKind::kDeposed:
      At(0, [this, index, term = node.lead->term()] {
        if (nodes_[index].lead && nodes_[index].lead->term() == term) nodes_[index].lead.reset();
      });
      LearnFromStore(index);
      break;
    default:
      break;
  }
}

// The node registers again as soon as it can: its link was closed when it was silent.
void LeaseSimulation::Register(size_t leader, NodeIndex node, uint64_t term) {
  At(Pick(1, 300) * kMillisecond, [this, leader, node, term] {
    Node& me = nodes_[leader];
    if (me.dead || nodes_[node].dead || !me.lead || me.lead->term() != term) return;
    if (!Awake(me) || !Awake(nodes_[node]) || cut_[leader][node] || cut_[node][leader])
      return Register(leader, node, term);
    me.lead->NodeAttached(node, Local(me));
  });
}

void LeaseSimulation::StartMembers(size_t leader) {
  const Node& lead = nodes_[leader];
  if (!Awake(lead) || !lead.lead || lead.lead->deposed()) return;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (cut_[leader][i]) continue;
    At(Pick(0, 500) * kMillisecond, [this, i, term = lead.lead->term()] {
      Node& node = nodes_[i];
      if (!Awake(node) || Running(i) || node.agent->term() != term) return;
      if (!node.agent->MayRun(Local(node)) || !node.agent->MayBeatSupervisors(Local(node))) return;
      node.running = true;
      node.started_in = term;
      node.beaten = now_;
    });
  }
}

void LeaseSimulation::TakeOver(size_t index, uint64_t term, bool promised, bool claim) {
  Node& node = nodes_[index];
  if (node.trying) return;
  node.trying = true;
  const Nanos asked = Local(node);
  const bool slow = Chance(0.1);
  const Nanos there = Pick(1, slow ? 600 : 20) * kMillisecond;
  const Nanos back = Pick(1, slow ? 600 : 20) * kMillisecond;
  auto ok = std::make_shared<bool>(false);
  At(there, [this, index, term, ok] {
    if (nodes_[index].store_cut || nodes_[index].dead || store_term_ != term) return;
    store_term_ = term + 1;
    leader_ = index;
    *ok = true;
  });
  At(there + back, [this, index, term, promised, claim, ok, asked] {
    HearFromStore(index, {term, promised, claim, asked}, *ok);
  });
}

void LeaseSimulation::HearFromStore(size_t index, const Try& tried, bool ok) {
  Node& me = nodes_[index];
  if (me.dead) return;
  if (!Awake(me)) {
    At(me.paused_until - now_ + kMillisecond, [this, index, tried, ok] { HearFromStore(index, tried, ok); });
    return;
  }
  me.trying = false;
  if (tried.claim) me.agent->Claimed(tried.term, ok, Local(me));
  if (!ok) {
    LearnFromStore(index);
    return;
  }
  LeadSettings lead;
  lead.times = times_;
  lead.gang = kGang;
  lead.term = tried.term + 1;
  lead.self = static_cast<NodeIndex>(index);
  lead.nodes = nodes_.size();
  lead.witnesses = witnesses_;
  lead.inherited = true;
  lead.promised = tried.promised;
  lead.asked_at = tried.asked;
  lead.taken_at = Local(me);
  for (size_t i = 0; i < nodes_.size(); ++i) lead.watched.push_back(static_cast<NodeIndex>(i));
  me.lead = std::make_unique<CoordinatorLease>(lead, Local(me));
  Log(fmt::format("n{} leads term {}", index, tried.term + 1));
  Wake(index);
}

// Who has lost a compare-and-swap gives the winner time to announce itself, then reads who it is.
void LeaseSimulation::LearnFromStore(size_t index) {
  At(Pick(1'500, 2'500) * kMillisecond, [this, index] {
    Node& me = nodes_[index];
    if (me.dead || store_term_ <= me.agent->term()) return;
    if (me.store_cut || !Awake(me)) {
      LearnFromStore(index);
      return;
    }
    Output out;
    me.agent->Follow(store_term_, static_cast<NodeIndex>(leader_), witnesses_, Source::kRecord, Local(me),
                     &out);
    Carry(index, &out, index);
    Schedule(index);
  });
}

void LeaseSimulation::Confirm(size_t index) {
  const Nanos asked = Local(nodes_[index]);
  auto read = std::make_shared<uint64_t>(0);
  const Nanos there = Pick(1, Chance(0.1) ? 400 : 10) * kMillisecond;
  At(there, [this, index, read] { *read = nodes_[index].store_cut ? 0 : store_term_; });
  At(there + Pick(1, 10) * kMillisecond, [this, index, read, asked] {
    Node& me = nodes_[index];
    if (!Awake(me) || !me.lead || *read == 0) return;
    Output out;
    if (*read == me.lead->term()) me.lead->StoreConfirmed(asked, Local(me), &out);
    if (*read > me.lead->term()) me.lead->Depose(*read, &out);
    Carry(index, &out, index);
  });
}

std::string LeaseSimulation::WhoDoesNotAttend() const {
  std::string who;
  if (!nodes_[leader_].lead || nodes_[leader_].dead)
    return fmt::format("term {} has no coordinator", store_term_);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.dead) continue;
    if (node.agent->term() != store_term_ || !node.agent->MayRun(Local(node))) {
      who += fmt::format(" n{} (term {}, promised {})", i, node.agent->term(), node.agent->promised());
    }
  }
  return who.empty() ? "" : fmt::format("of term {} do not attend:{}", store_term_, who);
}

}  // namespace muster::lease
