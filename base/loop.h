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

// What loops' timers go by. Thread-safe. It lives longer than its loops.
class LoopClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~LoopClock() = default;
  [[nodiscard]] virtual Time Now() const = 0;
  // For how many ms of real time a loop with nothing to do before `due` may wait, -1: for ever. It looks again then.
  [[nodiscard]] virtual int WaitMs(Time due) const = 0;
  // A loop goes by it. Once the clock has moved by itself, something is to be posted there.
  virtual void Serve(const std::shared_ptr<Mailbox>& /*loop*/) {}
};

// That of the machine.
LoopClock& SteadyLoopClock();

// Everything but Post, Stop and the mailbox belongs to the thread that calls Run (or to the time before Run).
class Loop {
 public:
  using Time = LoopClock::Time;
  using TimerId = uint64_t;  // 0 is never one

  explicit Loop(LoopClock& clock = SteadyLoopClock());
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Calls `ready(events)` (EPOLLIN and so on) whenever the descriptor is ready. The loop does not own it.
  void Watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void Unwatch(int fd);

  // By the clock that the timers go by.
  [[nodiscard]] Time Now() const { return clock_.Now(); }
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
  // The longest real time so far between two waits, in which nothing else was attended to.
  [[nodiscard]] std::chrono::steady_clock::duration longest_turn() const { return longest_turn_; }

 private:
  TimerId At(Time when, std::function<void()> fire);
  [[nodiscard]] int NextTimeout() const;
  void FireTimers();

  LoopClock& clock_;
  const Time made_ = clock_.Now();
  UniqueFd epoll_;
  std::shared_ptr<Mailbox> mailbox_;
  bool stopped_ = false;
  std::chrono::steady_clock::duration longest_turn_{};
  std::unordered_map<int, std::function<void(uint32_t)>> watches_;
  std::map<std::pair<Time, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Time> timer_times_;
  TimerId next_timer_ = 1;
};

}  // namespace muster
