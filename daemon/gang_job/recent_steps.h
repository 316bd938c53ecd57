// Steps that were seen, in memory that does not grow with a long run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>

namespace muster {

class RecentSteps {
 public:
  // How many are remembered: of more the lowest is forgotten.
  static constexpr size_t kKept = 1024;

  // False, and nothing changes, for a step that is there, or may have been: one lower than what was forgotten.
  bool Add(uint64_t step) {
    if ((forgotten_ && step <= *forgotten_) || !steps_.insert(step).second) return false;
    if (steps_.size() > kKept) {
      forgotten_ = *steps_.begin();
      steps_.erase(steps_.begin());
    }
    return true;
  }
  void Remove(uint64_t step) { steps_.erase(step); }
  // Whether it is remembered.
  [[nodiscard]] bool Has(uint64_t step) const { return steps_.contains(step); }
  [[nodiscard]] std::optional<uint64_t> Highest() const {
    return steps_.empty() ? std::nullopt : std::optional(*steps_.rbegin());
  }
  void Clear() { *this = {}; }

 private:
  std::set<uint64_t> steps_;
  std::optional<uint64_t> forgotten_;  // the highest
};

}  // namespace muster
