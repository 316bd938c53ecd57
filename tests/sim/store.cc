#include "tests/sim/store.h"

#include <algorithm>
#include <memory>

namespace muster::sim {
namespace {

constexpr Nanos kTimeout = 700 * kMs;
constexpr size_t kKept = 2;  // the newest

}  // namespace

std::string ManifestOf(uint64_t step, const Fence& fence) {
  return fmt::format("{}.{}.{}", step, fence.term, fence.generation);
}

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

bool Store::Commit(Head& head, const Fence& fence, const Checkpoint& checkpoint,
                   const std::set<uint64_t>& kept) {
  const uint64_t step = checkpoint.step;
  const auto listed = head.checkpoints.find(step);
  const bool there = listed != head.checkpoints.end() && listed->second.generation == fence.generation;
  if (head.fence != fence) return checkpoint.again && there && listed->second == fence;
  if (there && checkpoint.again) return true;
  if (++commits_[{fence.generation, step}] > 1) {
    world_.Fail(Invariant::kCommittedOnce,
                fmt::format("step {} of generation {} is committed twice", step, fence.generation));
  }
  head.checkpoints[step] = fence;
  bad_.erase(step);
  size_t newer = head.checkpoints.size();
  std::erase_if(head.checkpoints,
                [&](const auto& c) { return newer-- > kKept && c.first != step && !kept.contains(c.first); });
  world_.Log("store: step {} of ({}, {}) is committed", step, fence.term, fence.generation);
  return true;
}

bool Store::MarkBad(Head& head, const Fence& fence, uint64_t step, const std::string& manifest) {
  if (head.fence != fence) return false;
  const auto found = head.checkpoints.find(step);
  if (found == head.checkpoints.end() || ManifestOf(step, found->second) != manifest) return true;
  head.checkpoints.erase(found);
  bad_.insert(step);
  return true;
}

void Store::Heal() {
  std::fill(cut_.begin(), cut_.end(), false);
  down_ = false;
  slow_ = 0;
  forgetful_ = 0;
}

}  // namespace muster::sim
