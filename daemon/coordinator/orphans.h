// Removes the objects that saves of older generations have left in the store, which no checkpoint lists.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/loop.h"
#include "base/timer.h"
#include "base/worker.h"
#include "ceph/catalog/catalog.h"

namespace muster {

// On the loop's thread, but for CommitOver. All objects are listed for it, so not too often, and on a thread of its own: commits do
// not wait for it. The destructor waits for what is under way.
class Orphans {
 public:
  struct Settings {
    std::string gang;                 // its id, for the log
    std::chrono::milliseconds pause;  // between two collections
    // What was under way to the store when its writer was stopped may land as long as an operation may take.
    std::chrono::milliseconds store_timeout;
  };
  // `fence` gives the newest fence that is in the store: objects of that generation stay.
  Orphans(Loop& loop, std::shared_ptr<Catalog> catalog, std::function<Fence()> fence, Settings settings);

  // Collects as soon as the pause is over, and once more after `store_timeout`.
  void Collect();
  // Gives a function that has Collect called. Thread-safe.
  [[nodiscard]] std::function<void()> CollectSoon();
  // From now on Collect does nothing. What this gives is to be called once: it calls `then` on the collecting thread, and with `all`
  // collects before that what the newest generation has left as well.
  std::function<void()> AtTheEnd(bool all, std::function<void()> then);

  // Gives a function to be called with the outcome of each commit. While the store may still carry out a commit late, an object that is not listed may be a checkpoint's.
  // Thread-safe.
  [[nodiscard]] std::function<void(const Status&)> CommitOver() const;

  // The thread, for what may wait for a collection.
  [[nodiscard]] Worker& worker() { return worker_; }

 private:
  [[nodiscard]] std::function<void()> Collecting(Catalog::Writers writers) const;

  const std::shared_ptr<Catalog> catalog_;
  const std::function<Fence()> fence_;
  const Settings settings_;
  Loop& loop_;
  Loop::Time next_;  // not before
  Timer timer_;
  Timer late_;
  bool over_ = false;
  std::shared_ptr<std::atomic<bool>> in_doubt_ = std::make_shared<std::atomic<bool>>(false);
  Worker worker_;
};

}  // namespace muster
