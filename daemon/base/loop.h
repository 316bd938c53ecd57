// One thread's event loop: descriptors, timers, and closures posted from other threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "daemon/base/unique_fd.h"

namespace muster {

// Everything but Post and Stop belongs to the thread that calls Run (or to the time before Run).
class Loop {
 public:
  using Clock = std::chrono::steady_clock;
  using TimerId = uint64_t;  // 0 is never one

  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Calls `ready(events)` (EPOLLIN and so on) whenever the descriptor is ready. The loop does not own it.
  void Watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void Unwatch(int fd);

  TimerId After(std::chrono::milliseconds delay, std::function<void()> fire);
  void Cancel(TimerId id);

  // Runs `work` on the loop's thread, in the order posted. Any thread. Work posted after Stop is dropped.
  void Post(std::function<void()> work);

  void Run();
  void Stop();

 private:
  void RunPosted();
  [[nodiscard]] int NextTimeout() const;
  void FireTimers();

  UniqueFd epoll_;
  UniqueFd wake_;
  bool stopped_ = false;
  std::unordered_map<int, std::function<void(uint32_t)>> watches_;
  std::map<std::pair<Clock::time_point, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Clock::time_point> timer_times_;
  TimerId next_timer_ = 1;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace muster
