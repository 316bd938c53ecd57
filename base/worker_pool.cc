#include "base/worker_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace muster {

WorkerPool::WorkerPool(size_t threads, const char* name, int niceness) {
  threads_.reserve(std::max<size_t>(threads, 1));
  for (size_t i = 0; i < std::max<size_t>(threads, 1); ++i) {
    threads_.emplace_back([this, niceness] { Run(niceness); });
    pthread_setname_np(threads_.back().native_handle(), name);
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::PostAfter(std::chrono::milliseconds delay, Task task) {
  const std::lock_guard lock(mutex_);
  due_.emplace(Clock::now() + delay, std::move(task));
  // Under the lock: without it the task may run, and be what somebody waits for before destroying this pool.
  wake_.notify_one();
}

void WorkerPool::Run(int niceness) {
  // Of this thread alone, on Linux.
  if (niceness != 0) ::setpriority(PRIO_PROCESS, 0, niceness);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (due_.empty()) {
      // A task that still runs may post another one, so the last to stop is the one that sees nothing left.
      if (stopping_ && running_ == 0) break;
      wake_.wait(lock);
      continue;
    }
    const auto first = due_.begin();
    if (!stopping_ && first->first > Clock::now()) {
      // A copy: the entry may be taken by another thread while this one sleeps.
      const Clock::time_point at = first->first;
      wake_.wait_until(lock, at);
      continue;
    }
    Task task = std::move(first->second);
    due_.erase(first);
    ++running_;
    lock.unlock();
    task();
    task = nullptr;  // what it holds is released before it counts as ended
    lock.lock();
    --running_;
    if (stopping_) wake_.notify_all();
  }
  wake_.notify_all();
}

}  // namespace muster
