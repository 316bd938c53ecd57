#include "daemon/steps/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/crash_point.h"
#include "wire/step_page.h"

namespace muster::steps {
namespace {

constexpr uint64_t kHighestProposed = wire::kMaxStep / 2;
constexpr uint64_t kLongestStride = uint64_t{1} << 32;
constexpr uint64_t kMostHeadroom = uint64_t{1} << 40;
constexpr uint32_t kVoidsToTell = 3;
constexpr uint64_t kFarBehind = 10;  // strides
constexpr size_t kShownRanks = 8;

bool Wanted(const v1::StepWish& wish) {
  return wish.save() || wish.exit();
}

const char* What(const v1::StepWish& wish) {
  return wish.save() && wish.exit() ? "save and exit" : wish.exit() ? "exit" : "save";
}

}  // namespace

Agreement::Agreement(uint64_t generation, uint64_t number, World world, bool inherited, Hooks hooks,
                     int64_t now)
    : world_(std::move(world)), hooks_(std::move(hooks)), since_(now) {
  order_.set_generation(generation);
  order_.set_number(number);
  if (!inherited) return;
  phase_ = Phase::kLearning;
  order_.set_ask(true);
  Send();
}

void Agreement::Send() {
  order_.set_number(order_.number() + 1);
  answers_.clear();
  unheard_.clear();
  sent_ = true;
  for (const uint32_t node : world_.nodes) hooks_.send(node, order_);
}

void Agreement::Enter(Phase phase, int64_t now) {
  phase_ = phase;
  since_ = now;
  order_.set_proposed(phase == Phase::kProposed);
  if (phase == Phase::kLooking) headroom_ = 1;
  Send();
}

void Agreement::Pause(int64_t now) {
  if (order_.proposed()) return Enter(Phase::kLooking, now);
  phase_ = Phase::kPaused;
  since_ = now;
}

void Agreement::Want(bool save, bool exit, const std::string& reason, int64_t now) {
  v1::StepWish& wanted = *order_.mutable_wanted();
  if (wanted.reason().empty() || (exit && !wanted.exit())) wanted.set_reason(reason);
  wanted.set_save(save || wanted.save());
  wanted.set_exit(exit || wanted.exit());
  order_.set_wants(order_.wants() + 1);
  order_.set_save(save || order_.save());
  order_.set_exit(exit || order_.exit());
  pause_ = kLookMs;
  // The nodes know what is wanted, for the next coordinator.
  if (phase_ == Phase::kProposed) return Send();
  if (phase_ != Phase::kLearning) Enter(Phase::kLooking, now);
}

void Agreement::Joined(uint32_t node) {
  if (!Has(node) || !sent_) return;
  answers_.erase(node);
  hooks_.send(node, order_);
}

void Agreement::Left(uint32_t node, int64_t now) {
  if (Has(node) && phase_ == Phase::kProposed) Enter(Phase::kLooking, now);
}

void Agreement::Take(uint32_t node, const v1::StepAnswer& answer, int64_t now) {
  if (!Has(node) || answer.generation() != order_.generation() || answer.number() != order_.number() ||
      phase_ == Phase::kIdle || phase_ == Phase::kPaused) {
    return;
  }
  if (answer.unheard_size() > 0) {
    unheard_[node] = answer;
    return;
  }
  unheard_.erase(node);
  answers_[node] = answer;
  if (answers_.size() < world_.nodes.size()) return;
  if (phase_ == Phase::kLearning) return Learned(now);
  if (phase_ == Phase::kLooking) {
    if (pause_due_) return Pause(now);
    told_ = told_ && voids_ > 0;
    return Propose(now);
  }
  voids_ = 0;
  told_ = false;
  if (Highest() < order_.wanted().step()) return Decide(now);
  headroom_ *= 2;
  if (headroom_ <= kMostHeadroom) return Propose(now);
  pause_due_ = true;
  Enter(Phase::kLooking, now);
}

// What any node knows to be agreed on is.
void Agreement::Learned(int64_t now) {
  told_ = false;
  order_.set_ask(false);
  uint64_t decisions = 0;
  uint64_t wants = 0;
  for (const auto& [node, answer] : answers_) {
    const v1::StepOrder& held = answer.held();
    decisions = std::max(decisions, held.decisions());
    wants = std::max(wants, held.wants());
    order_.set_save(order_.save() || held.save());
    order_.set_exit(order_.exit() || held.exit());
  }
  for (const auto& [node, answer] : answers_) {
    const v1::StepOrder& held = answer.held();
    if (held.decisions() != decisions) continue;
    order_.set_decisions(decisions);
    *order_.mutable_agreed() = held.agreed();
    v1::StepWish& wanted = *order_.mutable_wanted();
    // What was said first.
    if (Wanted(held.wanted()) && (held.wanted().exit() || !wanted.exit()))
      wanted.set_reason(held.wanted().reason());
    wanted.set_save(wanted.save() || held.wanted().save());
    wanted.set_exit(wanted.exit() || held.wanted().exit());
  }
  order_.set_wants(order_.wants() + wants);
  Enter(Wanted(order_.wanted()) ? Phase::kLooking : Phase::kIdle, now);
}

// Of the answers that are there.
uint64_t Agreement::Highest() const {
  uint64_t highest = 0;
  for (const auto& [node, answer] : answers_) {
    if (answer.entered()) highest = std::max(highest, answer.highest());
  }
  return highest;
}

bool Agreement::AllPassed(uint64_t step) const {
  return std::all_of(answers_.begin(), answers_.end(), [step](const auto& item) {
    const v1::StepAnswer& answer = item.second;
    return answer.never_size() == 0 && (!answer.entered() || answer.lowest() > step);
  });
}

void Agreement::Propose(int64_t now) {
  const bool any =
      std::any_of(answers_.begin(), answers_.end(), [](const auto& item) { return item.second.entered(); });
  const bool full = static_cast<uint64_t>(order_.agreed_size()) >= wire::kKeptSteps;
  if (!any || (full && !AllPassed(order_.agreed(0).step()))) return Pause(now);
  uint64_t highest = Highest();
  if (highest > kHighestProposed) {
    hooks_.note(
        fmt::format("no step is agreed on: a rank has entered step {}, and there are few above", highest));
    order_.clear_wanted();
    return Enter(Phase::kIdle, now);
  }
  // Who enters every tenth step only must come by.
  uint64_t stride = 1;
  uint64_t at = highest;
  for (const auto& [node, answer] : answers_) {
    if (answer.stride() <= stride || answer.stride() > kLongestStride) continue;
    stride = answer.stride();
    at = answer.stride_at();
  }
  // A step is agreed on once. One that members will not come to soon, for their numbers have jumped, does not count.
  const uint64_t soon = highest + std::max(kFarBehind * stride, 2 * ahead_);
  const v1::StepWish& wanted = order_.wanted();
  for (const v1::StepWish& agreed : order_.agreed()) {
    if (agreed.step() <= highest || agreed.step() > soon) continue;
    if (agreed.save() >= wanted.save() && agreed.exit() >= wanted.exit()) {
      order_.clear_wanted();
      return Enter(Phase::kIdle, now);
    }
    highest = agreed.step();
  }
  const uint64_t behind = highest - std::min(at, highest);
  uint64_t step = at + (behind / stride + std::min(headroom_, kMostHeadroom / stride + 1)) * stride;
  while (Agreed(step)) step += stride;
  ahead_ = step - Highest();
  order_.mutable_wanted()->set_step(step);
  Enter(Phase::kProposed, now);
}

bool Agreement::Agreed(uint64_t step) const {
  return std::any_of(order_.agreed().begin(), order_.agreed().end(),
                     [step](const v1::StepWish& wish) { return wish.step() == step; });
}

void Agreement::Decide(int64_t now) {
  CrashPoint("steps.answered");
  const v1::StepWish wish = order_.wanted();
  const std::string who = world_.role.empty() ? "all ranks" : "all ranks of role " + world_.role;
  hooks_.note(fmt::format("{} {} at step {}: {}{}", who, What(wish), wish.step(), wish.reason(),
                          WhoIsOdd(wish.step())));
  *order_.add_agreed() = wish;
  if (static_cast<uint64_t>(order_.agreed_size()) > wire::kKeptSteps)
    order_.mutable_agreed()->DeleteSubrange(0, 1);
  order_.set_decisions(order_.decisions() + 1);
  order_.clear_wanted();
  Enter(Phase::kIdle, now);
}

// Those that may not come to `step` with the others.
std::string Agreement::WhoIsOdd(uint64_t step) const {
  std::vector<uint32_t> never;
  const v1::StepAnswer* last = nullptr;
  uint64_t stride = 1;
  for (const auto& [node, answer] : answers_) {
    never.insert(never.end(), answer.never().begin(), answer.never().end());
    stride = std::max(stride, answer.stride());
    if (answer.entered() && (last == nullptr || answer.lowest() < last->lowest())) last = &answer;
  }
  std::string text;
  if (!never.empty()) {
    std::sort(never.begin(), never.end());
    const size_t shown = std::min(never.size(), kShownRanks);
    text = fmt::format("; rank{} {}{} had entered no step yet", never.size() > 1 ? "s" : "",
                       fmt::join(never.begin(), never.begin() + static_cast<ptrdiff_t>(shown), ", "),
                       shown < never.size() ? fmt::format(" and {} more", never.size() - shown) : "");
  }
  if (last != nullptr && (step - last->lowest()) / stride > kFarBehind)
    text += fmt::format("; rank {} is at step {}", last->lowest_rank(), last->lowest());
  return text;
}

void Agreement::Take(const v1::StepNews& news, int64_t now) {
  if (news.generation() != order_.generation()) return;
  if (!news.passed()) {
    if (std::exchange(told_odd_, true)) return;
    return hooks_.note(fmt::format(
        "rank {} went back from step {} to step {}: it is not asked to save or exit before a step "
        "above the highest",
        news.rank(), news.step(), news.to()));
  }
  const auto agreed = std::find_if(order_.agreed().begin(), order_.agreed().end(),
                                   [&](const v1::StepWish& wish) { return wish.step() == news.step(); });
  if (agreed == order_.agreed().end() || !passed_.insert(news.step()).second) return;
  const v1::StepWish wish = *agreed;
  const bool again = passed_.size() <= kMostPassed;
  hooks_.note(fmt::format("rank {} entered step {} and not step {}, at which all ranks {}: {}", news.rank(),
                          news.to(), news.step(), What(wish),
                          again ? "another step is looked for"
                                : "no other is looked for, for ranks do not enter the same steps"));
  if (again) Want(wish.save(), wish.exit(), wish.reason(), now);
}

void Agreement::Tick(int64_t now) {
  if (phase_ == Phase::kProposed && now - since_ >= kPatienceMs) {
    if (++voids_ >= kVoidsToTell) TellMissing();
    pause_due_ = true;  // members have waited in vain for a slow node
    return Enter(Phase::kLooking, now);
  }
  if (phase_ == Phase::kPaused && now - since_ >= pause_) {
    pause_ = std::min(2 * pause_, kLongestLookMs);
    pause_due_ = false;
    return Enter(Phase::kLooking, now);
  }
  if ((phase_ == Phase::kLooking || phase_ == Phase::kLearning) && now - since_ >= kTellMs) TellMissing();
}

void Agreement::TellMissing() {
  if (!Wanted(order_.wanted()) || std::exchange(told_, true)) return;
  for (const uint32_t node : world_.nodes) {
    if (answers_.contains(node)) continue;
    const auto unheard = unheard_.find(node);
    const std::string why =
        unheard == unheard_.end()
            ? "does not answer"
            : fmt::format("has not heard rank {} since musterd was restarted", unheard->second.unheard(0));
    return hooks_.note(fmt::format("no step is agreed on yet: node {} {}", hooks_.name(node), why));
  }
}

}  // namespace muster::steps
