#include "daemon/coordinator/record_fence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster {

void RecordFence::Take(const Fence& head) {
  fence_ = head;
  durable_ = head.generation;
}

std::optional<RecordFence::Advance> RecordFence::Write(uint64_t generation) {
  if (raising_ && !MUSTER_PLANTED(written_while_raising)) {
    owed_ = true;
    return std::nullopt;
  }
  const Fence from = fence_;
  fence_.generation = std::max(fence_.generation, generation);
  return Advance{from, fence_};
}

std::optional<RecordFence::Advance> RecordFence::Raise() {
  if (raising_ || lost()) return std::nullopt;
  raising_ = true;
  return Advance{fence_, {fence_.term + 1, fence_.generation}};
}

RecordFence::Raised RecordFence::RaiseOver(bool done) {
  raising_ = false;
  if (done) ++fence_.term;
  return {.begun = done, .owed = std::exchange(owed_, false), .overtaken = newer_ > fence_.term};
}

bool RecordFence::Durable(uint64_t generation) {
  return std::exchange(durable_, std::max(durable_, generation)) < generation;
}

bool RecordFence::Seen(uint64_t term) {
  newer_ = std::max(newer_, term);
  return term > fence_.term && (!raising_ || MUSTER_PLANTED(own_term_deposes));
}

bool RecordFence::AskWhose() {
  return !lost() && !std::exchange(asks_whose_, true);
}

std::function<bool()> RecordFence::Mine() const {
  return [lost = lost_] { return !*lost; };
}

std::string RecordFence::Newer() const {
  return fmt::format("term {} has begun", newer_);
}

}  // namespace muster
