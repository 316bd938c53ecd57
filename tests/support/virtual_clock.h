// Time that a test moves on.
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

// Loops by a clock that a test moves. Thread-safe.
class ServedLoops {
 public:
  void Add(const std::shared_ptr<Mailbox>& loop) {
    const std::lock_guard lock(mutex_);
    loops_.push_back(loop);
  }
  // They look at the time again.
  void Wake() {
    const std::lock_guard lock(mutex_);
    std::erase_if(loops_, [](const std::weak_ptr<Mailbox>& loop) { return loop.expired(); });
    for (const auto& loop : loops_) {
      if (const auto here = loop.lock()) here->Post([] {});
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Mailbox>> loops_;
};

// Stands still until it is moved. Thread-safe.
class VirtualClock final : public LoopClock {
 public:
  [[nodiscard]] Time Now() const override { return Time(Time::duration(now_.load())); }
  [[nodiscard]] int WaitMs(Time due) const override { return due <= Now() ? 0 : -1; }
  void Serve(const std::shared_ptr<Mailbox>& loop) override { loops_.Add(loop); }

  // What is due by then fires on its loop's thread soon, in the order of its times.
  void Move(Time::duration by) {
    now_ += by.count();
    loops_.Wake();
  }

 private:
  // Not 0, which is no time to some.
  std::atomic<Time::rep> now_{Time::duration(std::chrono::hours(1)).count()};
  ServedLoops loops_;
};

// The machine's clock, and what a test adds to it. Thread-safe.
class AheadClock final : public LoopClock {
 public:
  [[nodiscard]] Time Now() const override { return Base() + Ahead(); }
  [[nodiscard]] int WaitMs(Time due) const override {
    if (Stopped()) return due <= Now() ? 0 : -1;
    return SteadyLoopClock().WaitMs(due - Ahead());
  }
  void Serve(const std::shared_ptr<Mailbox>& loop) override { loops_.Add(loop); }

  void Move(Time::duration by) {
    ahead_ += by.count();
    loops_.Wake();
  }
  // From now on it goes on by Move alone.
  void Stop() {
    stopped_ = SteadyLoopClock().Now().time_since_epoch().count();
    loops_.Wake();
  }

 private:
  [[nodiscard]] bool Stopped() const { return stopped_.load() != 0; }
  [[nodiscard]] Time Base() const {
    return Stopped() ? Time(Time::duration(stopped_.load())) : SteadyLoopClock().Now();
  }
  [[nodiscard]] Time::duration Ahead() const { return Time::duration(ahead_.load()); }

  std::atomic<Time::rep> ahead_{0};
  std::atomic<Time::rep> stopped_{0};
  ServedLoops loops_;
};

}  // namespace muster
