// Operations of a communicator that run beside what the member computes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "base/result.h"
#include "net/collectives/collectives.h"

namespace muster {

// Carries out operations on a thread of its own, one after the other, in the order in which they were begun. All members
// begin the same operations in the same order. While any of them is not done, nobody else calls the communicator's
// operations; Abort and State may be called.
//
// An operation's deadline is its communicator's operation timeout from when it was begun, so those that are begun together
// share one. After an error all later ones fail at once, with the communicator's first reason.
//
// Not thread-safe.
class WorkQueue {
 public:
  // `group` outlives this.
  explicit WorkQueue(Collectives& group);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  // Aborts the communicator when something is not done, so that no buffer is touched any more.
  ~WorkQueue();

  // Whether a buffer has been written that a device still writes; an error: it will not be.
  using Written = std::function<Result<bool>()>;

  // As Collectives::AllReduce; returns at once. The buffer is the queue's until the future is ready. `written`, where there
  // is one, is asked on the queue's thread until it says so; when it does not by the deadline the communicator is aborted.
  [[nodiscard]] std::future<Status> AllReduce(Numbers values, ReduceOp op, Written written = {});

 private:
  struct Begun {
    Numbers values;
    ReduceOp op;
    Written written;
    std::chrono::steady_clock::time_point deadline;
    std::promise<Status> done;
  };
  void Run();
  [[nodiscard]] Status AwaitWritten(const Begun& begun);

  Collectives& group_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Begun> begun_;           // the first is under way
  std::atomic<bool> ending_ = false;  // read without the mutex too
  std::thread thread_;                // the last: it uses all of the above
};

}  // namespace muster
