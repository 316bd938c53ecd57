// What comes first, of what two threads do: a generation's record before its checkpoints, and these before the next
// generation's record, under which they would be refused. Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace muster {

class CommitOrder {
 public:
  // The record of this generation is in the store, or will not be: the fence tells a commit so.
  void Recorded(uint64_t generation) {
    const std::lock_guard lock(mutex_);
    recorded_ = std::max(recorded_, generation);
    changed_.notify_all();
  }
  // Until it is. False: `go_on`, which is asked now and then, has said no.
  bool AwaitRecord(uint64_t generation, const std::function<bool()>& go_on) {
    constexpr std::chrono::milliseconds kLook{100};
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [&] { return recorded_ >= generation; })) {
      if (!go_on()) return false;
    }
    return true;
  }
  // A commit is ordered, and is over.
  void Begin() {
    const std::lock_guard lock(mutex_);
    ++commits_;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    --commits_;
    changed_.notify_all();
  }
  // Until all are over, but no longer than that.
  void AwaitCommits(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return commits_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  int commits_ = 0;
};

}  // namespace muster
