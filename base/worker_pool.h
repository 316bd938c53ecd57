// A few threads that run what is posted to them, now or after a delay.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace muster {

// Thread-safe. Tasks start in the order of their due times. The destructor runs everything that was posted,
// delayed tasks at once, and returns when the last one has ended; a task may post further tasks until then.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  // `name`: at most 15 bytes, as `ps -L` shows it. `niceness`: of the threads, see setpriority(2).
  WorkerPool(size_t threads, const char* name, int niceness = 0);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(Task task) { PostAfter({}, std::move(task)); }
  void PostAfter(std::chrono::milliseconds delay, Task task);

 private:
  using Clock = std::chrono::steady_clock;

  void Run(int niceness);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::multimap<Clock::time_point, Task> due_;
  size_t running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace muster
