#include "tests/sim/store.h"

#include <algorithm>
#include <memory>

namespace muster::sim {
namespace {

constexpr Nanos kTimeout = 700 * kMs;

}  // namespace

void Store::Ask(uint32_t host, std::function<bool(Head&)> change,
                std::function<void(Answer, const Head&)> answer) {
  const auto delay = [&] {
    return slow_ > 0 && world_.Chance(slow_) ? world_.Pick(50, 400) * kMs : world_.Pick(1, 4) * kMs;
  };
  const Nanos there = delay();
  const Nanos back = delay();
  auto result = std::make_shared<std::optional<std::pair<Answer, Head>>>();
  world_.After(there, [this, host, change = std::move(change), result] {
    if (down_ || cut_[host]) return;
    const bool changed = change(head_);
    *result = std::pair(changed ? Answer::kDone : Answer::kConflict, head_);
  });
  const bool forgotten = forgetful_ > 0 && world_.Chance(forgetful_);
  world_.After(there + back, [this, answer = std::move(answer), result, forgotten, waited = there + back] {
    if (*result && !forgotten) return answer((*result)->first, (*result)->second);
    world_.After(std::max<Nanos>(kTimeout - waited, 0), [answer] { answer(Answer::kNone, {}); });
  });
}

bool Store::Commit(Head& head, const Fence& fence, uint64_t step) {
  if (head.fence != fence) return false;
  if (++commits_[{fence.generation, step}] > 1) {
    world_.Fail(fmt::format("step {} of generation {} is committed twice", step, fence.generation));
  }
  head.checkpoints[step] = fence;
  world_.Log("store: step {} of ({}, {}) is committed", step, fence.term, fence.generation);
  return true;
}

void Store::Heal() {
  std::fill(cut_.begin(), cut_.end(), false);
  down_ = false;
  slow_ = 0;
  forgetful_ = 0;
}

}  // namespace muster::sim
