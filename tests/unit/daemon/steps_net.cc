#include "tests/unit/daemon/steps_net.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace muster::steps {

StepsNet::StepsNet(Settings settings)
    : settings_(settings),
      random_(settings.seed),
      nodes_(settings.nodes),
      members_(static_cast<size_t>(settings.nodes) * settings.each) {
  for (Member& member : members_) {
    for (uint64_t step = 1; step <= 60; ++step) member.steps.push_back(step);
  }
  MakeCoordinator(false);
  for (uint32_t node = 0; node < settings_.nodes; ++node) {
    MakeNode(node);
    Connect(node);
  }
}

void StepsNet::At(int64_t ms, std::function<void()> what) {
  events_.push({now_ + ms, ++number_, std::move(what)});
}

void StepsNet::Run(int64_t ms) {
  (void)RunUntil([] { return false; }, ms);
}

bool StepsNet::RunUntil(const std::function<bool()>& condition, int64_t ms) {
  const int64_t end = now_ + ms;
  while (!condition()) {
    if (events_.empty() || events_.top().at > end) {
      now_ = end;
      return false;
    }
    Event event = events_.top();
    events_.pop();
    now_ = event.at;
    event.what();
  }
  return true;
}

// ---- coordinators and nodes

void StepsNet::MakeCoordinator(bool inherited) {
  auto made = std::make_shared<Coordinator>();
  made->term = ++term_;
  std::weak_ptr<Coordinator> weak = made;
  GangSide::Hooks hooks;
  hooks.talk.send = [this, weak](uint32_t node, const v1::StepOrder& order) {
    const auto self = weak.lock();
    Node& to = nodes_[node];
    if (!self || to.peer.lock() != self) return;
    to.down_at = std::max(to.down_at, now_ + Random(0, settings_.longest_delay_ms));
    At(to.down_at - now_, [this, node, link = to.link, term = self->term, order = Through(order)] {
      Node& here = nodes_[node];
      if (here.link != link || term < here.term || !here.side) return;
      if (before_order && !before_order(node, order)) return BreakLink(node);
      if (!here.side) return;
      here.term = term;
      here.side->Take(order);
    });
  };
  hooks.talk.note = [this](const std::string& text) { notes_.push_back(text); };
  hooks.talk.name = [](uint32_t node) { return fmt::format("n{}", node + 1); };
  hooks.now = [this] { return now_; };
  hooks.after = [this](int64_t ms, std::function<void()> what) { At(ms, std::move(what)); };
  made->side = std::make_unique<GangSide>(std::move(hooks));
  current_ = made;
  Agreement::World world;
  for (uint32_t node = 0; node < settings_.nodes; ++node) world.nodes.insert(node);
  made->side->Begin(kGeneration, made->term, {world}, inherited);
}

void StepsNet::TakeOver(bool lives) {
  if (current_ && lives) former_.push_back(current_);
  MakeCoordinator(true);
  // One after the other they find out.
  for (uint32_t node = 0; node < settings_.nodes; ++node) At(Random(0, 50), [this, node] { Connect(node); });
}

void StepsNet::Connect(uint32_t node) {
  Node& here = nodes_[node];
  ++here.link;
  here.down_at = here.up_at = now_;
  std::shared_ptr<Coordinator> to = current_;
  if (!former_.empty() && Random(0, 99) < settings_.astray) {
    to = former_[static_cast<size_t>(Random(0, static_cast<int64_t>(former_.size()) - 1))];
    At(Random(5, 60), [this, node] { Connect(node); });
  }
  if (const auto before = here.peer.lock(); before && before != to) before->side->Left(node);
  here.peer = to;
  if (to && here.side) to->side->Joined(node);
}

void StepsNet::BreakLink(uint32_t node) {
  Node& here = nodes_[node];
  ++here.link;
  const auto before = here.peer.lock();
  here.peer.reset();
  if (before) before->side->Left(node);
  At(Random(1, 30), [this, node] { Connect(node); });
}

void StepsNet::MakeNode(uint32_t node) {
  Node& here = nodes_[node];
  NodeSide::Hooks hooks;
  const auto up = [this, node](auto message) {
    Node& from = nodes_[node];
    const auto to = from.peer.lock();
    if (!to) return;
    from.up_at = std::max(from.up_at, now_ + Random(0, settings_.longest_delay_ms));
    At(from.up_at - now_, [this, node, link = from.link, to, message] {
      if (nodes_[node].link != link) return;
      if constexpr (std::is_same_v<decltype(message), v1::StepAnswer>) {
        if (before_answer && !before_answer(node, message)) return BreakLink(node);
      }
      to->side->Take(node, message);
    });
  };
  hooks.answer = [up](const v1::StepAnswer& answer) { up(Through(answer)); };
  hooks.news = [up](const v1::StepNews& news) { up(Through(news)); };
  hooks.keep = [this, node](bool /*again*/) {
    Node& from = nodes_[node];
    if (from.refuses) return false;
    from.kept = from.side->kept();
    return true;
  };
  hooks.now = [this] { return now_ * 1'000'000 + 1; };
  hooks.after = [this](int64_t ms, std::function<void()> what) { At(ms, std::move(what)); };
  here.side = std::make_unique<NodeSide>(std::move(hooks));
  here.side->Restore(here.kept);
  std::set<uint32_t> ranks;
  for (uint32_t i = 0; i < settings_.each; ++i) ranks.insert(node * settings_.each + i);
  here.side->Begin(kGeneration, ranks);
}

void StepsNet::RestartMusterd(uint32_t node, int64_t ms) {
  Node& here = nodes_[node];
  if (!here.side) return;
  here.side.reset();
  ++here.link;
  here.term = 0;  // it may not have been written
  if (const auto before = here.peer.lock()) before->side->Left(node);
  here.peer.reset();
  for (uint32_t i = 0; i < settings_.each; ++i) members_[node * settings_.each + i].connected = false;
  At(ms, [this, node] {
    MakeNode(node);
    Connect(node);
    for (uint32_t i = 0; i < settings_.each; ++i) {
      const uint32_t rank = node * settings_.each + i;
      if (members_[rank].open) At(Random(0, 40), [this, rank] { Attend(rank); });
    }
  });
}

// ---- members

void StepsNet::Open(uint32_t rank) {
  Member& member = members_[rank];
  if (member.open) return;
  member.open = true;
  member.page = std::make_shared<wire::StepPage>();
  wire::InitPage(member.page.get());
  Attend(rank);
}

void StepsNet::OpenAll() {
  for (uint32_t rank = 0; rank < ranks(); ++rank) Open(rank);
}

void StepsNet::Reopen(uint32_t rank) {
  Member& member = members_[rank];
  if (!member.open || member.waits || !member.connected) return;
  member.connected = false;
  member.page = std::make_shared<wire::StepPage>();
  wire::InitPage(member.page.get());
  Attend(rank);
}

// Says hello; the page follows a little later.
void StepsNet::Attend(uint32_t rank) {
  const uint32_t node = rank / settings_.each;
  NodeSide* const side = nodes_[node].side.get();
  if (side == nullptr) return At(10, [this, rank] { Attend(rank); });
  At(Random(0, settings_.longest_delay_ms), [this, rank, node, side] {
    Member& member = members_[rank];
    if (!member.open) return;
    if (nodes_[node].side.get() != side) return Attend(rank);
    if (!side->Attend(rank, member.page)) return At(10, [this, rank] { Attend(rank); });
    member.connected = true;
    Schedule(rank, 0);
  });
}

void StepsNet::End(uint32_t rank) {
  Member& member = members_[rank];
  if (!member.open || member.waits) return;
  member.open = false;
  if (NodeSide* const side = nodes_[rank / settings_.each].side.get(); side != nullptr)
    side->Ended(kGeneration, rank);
}

void StepsNet::Schedule(uint32_t rank, int64_t ms) {
  Member& member = members_[rank];
  if (std::exchange(member.scheduled, true)) return;
  At(ms, [this, rank] {
    members_[rank].scheduled = false;
    Go(rank);
  });
}

bool StepsNet::MayEnter(const Member& member) const {
  return !settings_.together || std::all_of(members_.begin(), members_.end(), [&](const Member& other) {
    return !other.open || other.next >= member.next || other.next >= other.steps.size();
  });
}

void StepsNet::Go(uint32_t rank) {
  Member& member = members_[rank];
  // Nothing is entered before the page has been attended once; then musterd is not needed.
  if (!member.open || member.waits || member.next >= member.steps.size() ||
      wire::CurrentOrder(member.page.get()) == 0)
    return;
  if (!MayEnter(member)) return Schedule(rank, Random(0, 2));
  member.above = wire::EnterStep(member.page.get(), member.steps[member.next], now_);
  member.waits = true;
  member.since = now_;
  At(Random(0, 2), [this, rank] { Look(rank); });
}

void StepsNet::Look(uint32_t rank) {
  Member& member = members_[rank];
  const uint64_t step = member.steps[member.next];
  wire::StepOrder order{};
  const wire::AgreedStep* wish = nullptr;
  uint64_t due = 0;
  const auto answer = wire::ReadOrder(member.page.get(), &order) ? wire::AnswerStep(order, step, &wish, &due)
                                                                 : wire::StepAnswer::kWait;
  if (answer == wire::StepAnswer::kWait) return At(1, [this, rank] { Look(rank); });
  member.longest = std::max(member.longest, now_ - member.since);
  member.waits = false;
  const uint32_t flags = wish != nullptr ? wish->wish : 0;
  if (wish != nullptr) reasons_[step] = std::string(wish->reason, wish->reason_bytes);
  if (const uint64_t passed = wire::PassedStep(order, step, member.above); passed != wire::kNoStep) {
    member.page->passed_to = step;
    member.page->passed = passed;
  }
  const auto [before, first] = answers_[step].emplace(rank, flags);
  if (!first && before->second != flags)
    contradiction_ =
        fmt::format("rank {} was answered {} and then {} at step {}", rank, before->second, flags, step);
  ++member.next;
  Schedule(rank, Random(0, settings_.step_ms));
}

// ---- what was seen

std::string StepsNet::Differs() const {
  if (!contradiction_.empty()) return contradiction_;
  for (const auto& [step, by_rank] : answers_) {
    for (const auto& [rank, flags] : by_rank) {
      if (flags != by_rank.begin()->second) {
        return fmt::format("step {}: rank {} was answered {}, rank {} {}", step, by_rank.begin()->first,
                           by_rank.begin()->second, rank, flags);
      }
    }
  }
  return "";
}

std::map<uint64_t, uint32_t> StepsNet::Wished() const {
  std::map<uint64_t, uint32_t> wished;
  for (const auto& [step, by_rank] : answers_) {
    if (by_rank.begin()->second != 0) wished[step] = by_rank.begin()->second;
  }
  return wished;
}

std::vector<uint32_t> StepsNet::Waiting() const {
  std::vector<uint32_t> waiting;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if (members_[rank].waits) waiting.push_back(rank);
  }
  return waiting;
}

int64_t StepsNet::LongestWait() const {
  int64_t longest = 0;
  for (const Member& member : members_)
    longest = std::max({longest, member.longest, member.waits ? now_ - member.since : 0});
  return longest;
}

bool StepsNet::AllDone() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return !member.open || member.next >= member.steps.size(); });
}

}  // namespace muster::steps
