// A loop on a thread of its own, by a clock that a test moves.
#pragma once

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "base/loop.h"
#include "tests/support/virtual_clock.h"

namespace muster {

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.Run(); }) {}
  ~LoopThread() {
    loop_.Stop();
    thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  [[nodiscard]] Loop& loop() { return loop_; }
  // What `work` gives on the loop's thread, once all that was posted before has been done.
  template <class F>
  auto Do(F work) {
    std::packaged_task<decltype(work())()> task(std::move(work));
    auto given = task.get_future();
    loop_.Post([&task] { task(); });
    return given.get();
  }
  // Moves the time; what is due then has been done when this returns.
  void Move(Loop::Time::duration by) {
    clock_.Move(by);
    for (int turn = 0; turn < 2; ++turn) Do([] {});
  }

 private:
  VirtualClock clock_;
  Loop loop_{clock_};
  std::thread thread_;
};

}  // namespace muster
