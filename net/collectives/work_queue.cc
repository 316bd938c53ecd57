#include "net/collectives/work_queue.h"

#include <string>
#include <utility>

namespace muster {
namespace {

// Nobody sleeps in the time that a small piece of work takes, and later not for long.
constexpr std::chrono::milliseconds kAwakeForWork(1);
constexpr std::chrono::microseconds kBetweenLooksForWork(50);

}  // namespace

WorkQueue::WorkQueue(Collectives& group) : group_(group), thread_([this] { Run(); }) {}

WorkQueue::~WorkQueue() {
  bool left = false;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    left = !begun_.empty();
  }
  changed_.notify_one();
  if (left) group_.Abort("nobody waits for its work any more");
  thread_.join();
}

std::future<Status> WorkQueue::AllReduce(Numbers values, ReduceOp op, Written written) {
  Begun begun{
      values, op, std::move(written), std::chrono::steady_clock::now() + group_.operation_timeout(), {}};
  std::future<Status> done = begun.done.get_future();
  {
    const std::lock_guard lock(mutex_);
    begun_.push_back(std::move(begun));
  }
  changed_.notify_one();
  return done;
}

void WorkQueue::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !begun_.empty(); });
    if (begun_.empty()) return;
    Begun& first = begun_.front();
    lock.unlock();
    Status reduced = AwaitWritten(first);
    if (reduced) reduced = group_.AllReduce(first.values, first.op, first.deadline);
    lock.lock();
    // Out of the queue before anybody hears of it, for whoever has heard may end the queue.
    std::promise<Status> done = std::move(first.done);
    begun_.pop_front();
    done.set_value(std::move(reduced));
  }
}

Status WorkQueue::AwaitWritten(const Begun& begun) {
  if (!begun.written) return {};
  const auto since = std::chrono::steady_clock::now();
  std::string why;
  while (why.empty()) {
    const Result<bool> written = begun.written();
    const auto now = std::chrono::steady_clock::now();
    if (!written) {
      why = written.error().message;
    } else if (*written) {
      return {};
    } else if (ending_) {
      why = "nobody waits for its work any more";
    } else if (now >= begun.deadline) {
      why = "its device had not done what comes before the exchange within " +
            std::to_string(group_.operation_timeout().count()) + " ms";
    } else if (now - since < kAwakeForWork) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kBetweenLooksForWork);
    }
  }
  group_.Abort(why);
  return group_.State();
}

}  // namespace muster
