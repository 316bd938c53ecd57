// Saves that have failed: for all members and for good, so that one who saves such a step later is told. The coordinator
// decides it; every agent remembers it too, so that the next coordinator hears of it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace muster {

class FailedSaves {
 public:
  // How many steps are remembered, the highest: a member may be so many saves behind another.
  static constexpr size_t kKept = 256;
  static constexpr size_t kMostText = 512;  // bytes of a reason

  // Forgets those of older generations. False, and nothing changes, for one that is known, or of an older generation than
  // these.
  bool Add(uint64_t generation, uint64_t step, const std::string& why) {
    if (generation < generation_) return false;
    if (generation > generation_) {
      saves_.clear();
      generation_ = generation;
    }
    if (!saves_.emplace(step, why.substr(0, kMostText)).second) return false;
    if (saves_.size() > kKept) saves_.erase(saves_.begin());
    return true;
  }
  // Why it has failed; null when it has not, as far as is known.
  [[nodiscard]] const std::string* Find(uint64_t generation, uint64_t step) const {
    const auto found = saves_.find(step);
    return generation == generation_ && found != saves_.end() ? &found->second : nullptr;
  }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] const std::map<uint64_t, std::string>& saves() const { return saves_; }  // by step

 private:
  uint64_t generation_ = 0;
  std::map<uint64_t, std::string> saves_;
};

}  // namespace muster
