// One thread's event loop: descriptors, timers, and closures posted from other threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.h"

namespace muster {

// Where other threads leave work for a loop. May outlive the loop: what is posted then is dropped. Thread-safe.
class Mailbox {
 public:
  Mailbox();
  void Post(std::function<void()> work);

 private:
  friend class Loop;
  std::vector<std::function<void()>> Take();
  void Close();

  UniqueFd wake_;
  std::mutex mutex_;
  bool open_ = true;
  std::vector<std::function<void()>> posted_;
};

// Everything but Post, Stop and the mailbox belongs to the thread that calls Run (or to the time before Run).
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
  // At the next multiple of `period` since this loop was made: timers of one period, or of multiples of it, fire in one
  // wake-up. After between one half and one and a half periods.
  TimerId AfterPeriod(std::chrono::milliseconds period, std::function<void()> fire);
  void Cancel(TimerId id);

  // Runs `work` on the loop's thread, in the order posted. Any thread. What Run has not come to when it returns
  // is dropped, and so is what is posted later.
  void Post(std::function<void()> work) { mailbox_->Post(std::move(work)); }
  // For threads that may outlive the loop.
  [[nodiscard]] const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }

  // Runs until Stop. Once.
  void Run();
  void Stop();
  // The longest time so far between two waits, in which nothing else was attended to.
  [[nodiscard]] Clock::duration longest_turn() const { return longest_turn_; }

 private:
  TimerId At(Clock::time_point when, std::function<void()> fire);
  [[nodiscard]] int NextTimeout() const;
  void FireTimers();

  const Clock::time_point made_ = Clock::now();
  UniqueFd epoll_;
  std::shared_ptr<Mailbox> mailbox_;
  bool stopped_ = false;
  Clock::duration longest_turn_{};
  std::unordered_map<int, std::function<void(uint32_t)>> watches_;
  std::map<std::pair<Clock::time_point, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Clock::time_point> timer_times_;
  TimerId next_timer_ = 1;
};

}  // namespace muster
