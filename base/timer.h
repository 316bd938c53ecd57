// One timer of a loop, which ends with its owner.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "base/loop.h"

namespace muster {

// On the loop's thread only.
class Timer {
 public:
  explicit Timer(Loop& loop) : loop_(loop) {}
  ~Timer() { Cancel(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Calls `fire` after `delay`, and not what an earlier call of After gave.
  void After(std::chrono::milliseconds delay, std::function<void()> fire) {
    Cancel();
    id_ = loop_.After(delay, [this, fire = std::move(fire)] {
      id_ = 0;
      fire();
    });
  }
  void Cancel() { loop_.Cancel(std::exchange(id_, 0)); }
  // Whether `fire` is still to be called.
  [[nodiscard]] bool waiting() const { return id_ != 0; }

 private:
  Loop& loop_;
  Loop::TimerId id_ = 0;
};

}  // namespace muster
