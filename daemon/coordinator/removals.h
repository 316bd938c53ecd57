// Removes the objects of checkpoints that retention has dropped: beside the commits, but not far behind them.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/base/worker.h"

namespace muster {

class Removals {
 public:
  explicit Removals(std::shared_ptr<Catalog> catalog) : catalog_(std::move(catalog)) {}

  // From the thread that commits. Who commits faster than the store removes is held up: when kMostWaiting checkpoints wait
  // they are removed before this returns.
  void Add(std::vector<CheckpointInfo> gone) {
    if (gone.empty()) return;
    bool many = false;
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), gone.begin(), gone.end());
      many = waiting_.size() > kMostWaiting;
    }
    if (many) return RemoveWaiting();
    worker_.Do([this] { RemoveWaiting(); });
  }
  // What is given to it runs after the removals that were begun before.
  [[nodiscard]] Worker& worker() { return worker_; }

 private:
  static constexpr size_t kMostWaiting = 4;

  void RemoveWaiting() {
    std::vector<CheckpointInfo> gone;
    {
      const std::lock_guard lock(mutex_);
      gone.swap(waiting_);
    }
    catalog_->RemoveObjects(gone);
  }

  const std::shared_ptr<Catalog> catalog_;
  std::mutex mutex_;
  std::vector<CheckpointInfo> waiting_;
  Worker worker_;
};

}  // namespace muster
