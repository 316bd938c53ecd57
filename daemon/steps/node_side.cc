#include "daemon/steps/node_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace muster::steps {
namespace {

constexpr int64_t kNodeTickMs = 1'000;

template <typename Wish>
uint32_t Flags(const Wish& wish) {
  return (wish.save() ? wire::kWishSave : 0) | (wish.exit() ? wire::kWishExit : 0);
}

// Not in the middle of a character.
size_t Fit(const std::string& text) {
  size_t size = std::min(text.size(), wire::kMaxStepReason);
  while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return size;
}

}  // namespace

void NodeSide::Restore(Kept kept) {
  kept_ = std::move(kept);
}

void NodeSide::Begin(uint64_t generation, const std::set<uint32_t>& ranks) {
  const bool same = kept_.generation == generation;
  if (same && begun_) return;
  begun_ = true;
  members_.clear();
  for (const uint32_t rank : ranks) members_[rank].unheard = same && kept_.opened.contains(rank);
  if (!same) {
    kept_ = {};
    kept_.generation = generation;
    kept_.order.set_generation(generation);
  }
  if (early_.generation() == generation) Take(std::exchange(early_, {}));
  if (ticking_) return;
  ticking_ = std::make_shared<int>(0);
  Tick();
}

bool NodeSide::Attend(uint32_t rank, std::shared_ptr<wire::StepPage> page) {
  const auto found = members_.find(rank);
  if (found == members_.end()) return true;
  Member& member = found->second;
  if (kept_.opened.insert(rank).second && !Keep()) {
    kept_.opened.erase(rank);
    return false;
  }
  member.ended = false;
  member.above = AboveOf(member);
  member.page = std::move(page);
  // A new page of a program that had another before musterd was restarted, or of one after it, does not say what it has entered.
  const bool whole = wire::CurrentOrder(member.page.get()) != 0 && member.page->unheard == 0;
  member.unheard = member.unheard && !whole;
  member.page->unheard = member.unheard ? 1 : 0;
  wire::RaiseAbove(member.page.get(), member.above);
  __atomic_store_n(&member.page->seen_ns, hooks_.now(), __ATOMIC_RELAXED);
  wire::WriteOrder(member.page.get(), OnPage());
  Answer();
  return true;
}

// What it has entered contradicts nobody: it is not there when the others come to a step. Its page stays, for one that musterd
// has thrown out may go on for a while.
void NodeSide::Ended(uint64_t generation, uint32_t rank) {
  const auto found = members_.find(rank);
  if (generation != kept_.generation || found == members_.end()) return;
  found->second.ended = true;
  found->second.unheard = false;
  // Not at once: many end together when a generation is stopped.
  to_keep_ |= kept_.opened.erase(rank) > 0;
  Answer();
}

std::map<uint32_t, std::shared_ptr<wire::StepPage>> NodeSide::pages() const {
  std::map<uint32_t, std::shared_ptr<wire::StepPage>> pages;
  for (const auto& [rank, member] : members_) {
    if (member.page && !member.ended) pages[rank] = member.page;
  }
  return pages;
}

uint64_t NodeSide::AboveOf(const Member& member) {
  return std::max(member.above, member.page ? wire::StepsAbove(member.page.get()) : 0);
}

wire::StepOrder NodeSide::OnPage() const {
  const v1::StepOrder& order = kept_.order;
  wire::StepOrder out{};
  out.proposed = order.proposed() ? order.wanted().step() : wire::kNoStep;
  out.decisions = order.decisions();
  out.wants = order.wants();
  out.wanted = Flags(order);
  for (int i = 0; i < order.agreed_size(); ++i) {
    const v1::StepWish& wish = order.agreed(i);
    const uint64_t which = order.decisions() - static_cast<uint64_t>(order.agreed_size() - i);
    wire::AgreedStep& agreed = out.agreed[which % wire::kKeptSteps];
    agreed.step = wish.step();
    agreed.wish = Flags(wish);
    agreed.reason_bytes = static_cast<uint32_t>(Fit(wish.reason()));
    std::memcpy(agreed.reason, wish.reason().data(), agreed.reason_bytes);
  }
  return out;
}

void NodeSide::Take(const v1::StepOrder& order) {
  if (!begun_ || order.generation() != kept_.generation) {
    const auto when = [](const v1::StepOrder& of) { return std::pair(of.generation(), of.number()); };
    if (when(order) > when(early_)) early_ = order;
    return;
  }
  if (order.number() < std::max(kept_.order.number(), kept_.asked)) return;
  if (order.ask()) {
    const uint64_t before = std::exchange(kept_.asked, order.number());
    if (before != kept_.asked && !Keep()) {
      kept_.asked = before;
      early_ = order;
      return;
    }
    v1::StepAnswer answer;
    answer.set_generation(order.generation());
    answer.set_number(order.number());
    *answer.mutable_held() = kept_.order;
    return hooks_.answer(answer);
  }
  const uint64_t before = kept_.order.number();
  if (order.number() != before) {
    v1::StepOrder old = std::exchange(kept_.order, order);
    // What promises nothing new needs not be kept: at worst the next musterd makes members wait until it is told once more.
    const bool promises = order.proposed() || order.decisions() != old.decisions();
    if (!Keep() && promises) {
      kept_.order = std::move(old);
      early_ = order;
      return;
    }
    const wire::StepOrder page = OnPage();
    for (auto& [rank, member] : members_) {
      if (member.page) wire::WriteOrder(member.page.get(), page);
      // A coordinator that was not there, or did not know yet what holds, has not heard it.
      member.passed = wire::kNoStep;
      member.told_back = false;
    }
  }
  Answer();
}

// To the newest order, which is on all pages.
void NodeSide::Answer() {
  if (!begun_ || kept_.order.number() == 0 || kept_.order.number() < kept_.asked) return;
  v1::StepAnswer answer;
  answer.set_generation(kept_.generation);
  answer.set_number(kept_.order.number());
  bool lives = false;  // one that has entered a step
  for (const auto& [rank, member] : members_) {
    if (member.unheard) {
      answer.add_unheard(rank);
      continue;
    }
    const uint64_t above = AboveOf(member);
    if (above == 0) {
      if (!member.ended) answer.add_never(rank);
      continue;
    }
    const uint64_t step = above - 1;
    if (!answer.entered() || step > answer.highest()) {
      answer.set_highest(step);
      answer.set_highest_rank(rank);
    }
    answer.set_entered(true);
    if (member.ended) continue;
    if (!std::exchange(lives, true) || step < answer.lowest()) {
      answer.set_lowest(step);
      answer.set_lowest_rank(rank);
    }
    if (!member.page) continue;
    // One rise may be a jump: that of a program that goes on from a checkpoint. Two that are equal are how it counts.
    const uint64_t before = __atomic_load_n(&member.page->before, __ATOMIC_ACQUIRE);
    const uint64_t earlier = __atomic_load_n(&member.page->earlier, __ATOMIC_ACQUIRE);
    if (earlier == 0 || earlier >= before || before >= above || above - before != before - earlier) continue;
    if (above - before <= answer.stride()) continue;
    answer.set_stride(above - before);
    answer.set_stride_at(step);
  }
  if (!lives) {  // nobody is behind
    answer.set_lowest(answer.highest());
    answer.set_lowest_rank(answer.highest_rank());
  }
  hooks_.answer(answer);
}

bool NodeSide::Keep() {
  const bool kept = hooks_.keep(unkept_);
  unkept_ = !kept;
  return kept;
}

// Members see that musterd is there without asking it.
void NodeSide::Tick() {
  if (early_.generation() == kept_.generation) Take(std::exchange(early_, {}));
  to_keep_ = to_keep_ && !Keep();
  for (auto& [rank, member] : members_) {
    if (!member.page) continue;
    __atomic_store_n(&member.page->seen_ns, hooks_.now(), __ATOMIC_RELAXED);
    TellNews(rank, member);
  }
  hooks_.after(kNodeTickMs, [this, alive = std::weak_ptr<int>(ticking_)] {
    if (!alive.expired()) Tick();
  });
}

void NodeSide::TellNews(uint32_t rank, Member& member) {
  const wire::StepPage& page = *member.page;
  v1::StepNews news;
  news.set_generation(kept_.generation);
  news.set_rank(rank);
  if (const uint64_t passed = __atomic_load_n(&page.passed, __ATOMIC_ACQUIRE);
      passed != wire::kNoStep && passed != member.passed) {
    member.passed = passed;
    news.set_passed(true);
    news.set_step(passed);
    news.set_to(__atomic_load_n(&page.passed_to, __ATOMIC_ACQUIRE));
    hooks_.news(news);
  }
  if (__atomic_load_n(&page.backwards, __ATOMIC_ACQUIRE) > 0 && !std::exchange(member.told_back, true)) {
    news.set_passed(false);
    news.set_step(AboveOf(member) - 1);
    news.set_to(__atomic_load_n(&page.step, __ATOMIC_ACQUIRE));
    hooks_.news(news);
  }
}

}  // namespace muster::steps
