// Time that stands still until a test moves it on.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/loop.h"

namespace muster {

// Thread-safe.
class VirtualClock final : public LoopClock {
 public:
  [[nodiscard]] Time Now() const override { return Time(Time::duration(now_.load())); }
  [[nodiscard]] int WaitMs(Time due) const override { return due <= Now() ? 0 : -1; }
  void Serve(const std::shared_ptr<Mailbox>& loop) override {
    const std::lock_guard lock(mutex_);
    loops_.push_back(loop);
  }

  // What is due by then fires on its loop's thread soon, in the order of its times.
  void Move(Time::duration by) {
    now_ += by.count();
    const std::lock_guard lock(mutex_);
    std::erase_if(loops_, [](const std::weak_ptr<Mailbox>& loop) { return loop.expired(); });
    for (const auto& loop : loops_) {
      if (const auto here = loop.lock()) here->Post([] {});
    }
  }

 private:
  // Not 0, which is no time to some.
  std::atomic<Time::rep> now_{Time::duration(std::chrono::hours(1)).count()};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Mailbox>> loops_;
};

}  // namespace muster
