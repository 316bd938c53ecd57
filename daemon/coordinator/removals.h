// Removes the objects of checkpoints that retention has dropped: beside the commits, but not far behind them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/worker.h"
#include "ceph/catalog/catalog.h"

namespace muster {

// Thread-safe. The destructor waits for what is under way.
class Removals {
 public:
  // `gang`: its id, for the log. `orphans` is called on the removing thread, when objects stay of a checkpoint whose manifest does not
  // read.
  Removals(std::shared_ptr<Catalog> catalog, std::string gang, std::function<void()> orphans);

  // From the thread that commits. Who commits faster than the store removes is held up: when several checkpoints wait the
  // oldest is removed before this returns. What the store does not remove now is tried again with the next ones.
  void Add(std::vector<CheckpointInfo> gone);
  // Calls this on another thread when what was given before is removed, or cannot be.
  void AtTheEnd(std::function<void()> then);

 private:
  void RemoveWaiting(size_t most);

  const std::shared_ptr<Catalog> catalog_;
  const std::string gang_;
  const std::function<void()> orphans_;
  std::mutex mutex_;
  std::vector<CheckpointInfo> waiting_;
  bool failing_ = false;  // the last time
  bool queued_ = false;   // the worker will look at what waits
  Worker worker_;
};

}  // namespace muster
