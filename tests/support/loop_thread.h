// A loop on a thread of its own, by a clock that a test moves.
#pragma once

#include <chrono>
#include <functional>
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
  // Whether `so` comes true on the loop's thread in a minute of real time: answers of threads and processes come at times of their own.
  bool Eventually(const std::function<bool()>& so) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!Do(so)) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
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
