#include "tests/sim/world.h"

#include <algorithm>

namespace muster::sim {

void World::After(Nanos delay, Task task) {
  uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<uint32_t>(tasks_.size());
    tasks_.push_back(std::move(task));
  } else {
    slot = free_.back();
    free_.pop_back();
    tasks_[slot] = std::move(task);
  }
  heap_.push_back({now_ + std::max<Nanos>(delay, 0), order_++, slot});
  std::push_heap(heap_.begin(), heap_.end());
}

bool World::Step(Nanos until) {
  if (heap_.empty() || heap_.front().at > until || !failure_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end());
  const Entry entry = heap_.back();
  heap_.pop_back();
  now_ = entry.at;
  const Task task = std::move(tasks_[entry.slot]);
  free_.push_back(entry.slot);
  ++events_;
  task();
  return true;
}

int64_t World::Pick(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

void World::Write(const std::string& line) {
  trace_ += fmt::format("{:10.3f} ms  {}\n", static_cast<double>(now_) / static_cast<double>(kMs), line);
}

void World::Fail(Invariant broken, const std::string& what) {
  if (failure_.empty()) {
    failure_ = fmt::format("{}: {}", Name(broken), what);
    broken_ = broken;
  }
  Log("BROKEN: {}: {}", Name(broken), what);
}

}  // namespace muster::sim
