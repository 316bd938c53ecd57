#include "daemon/coordinator/removals.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace muster {
namespace {

// Checkpoints. More than the second are forgotten while the store removes nothing: then they are orphans.
constexpr size_t kMostWaiting = 4;
constexpr size_t kMostFailed = 64;

}  // namespace

Removals::Removals(std::shared_ptr<Catalog> catalog, std::string gang)
    : catalog_(std::move(catalog)), gang_(std::move(gang)) {}

void Removals::Add(std::vector<CheckpointInfo> gone) {
  if (gone.empty()) return;
  bool now = false;
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.end(), gone.begin(), gone.end());
    while (waiting_.size() > kMostFailed) waiting_.erase(waiting_.begin());
    now = waiting_.size() > kMostWaiting && !failing_;
  }
  if (now) return RemoveWaiting();
  worker_.Do([this] { RemoveWaiting(); });
}

void Removals::AtTheEnd(std::function<void()> then) {
  worker_.Do([this, then = std::move(then)] {
    RemoveWaiting();
    then();
  });
}

void Removals::RemoveWaiting() {
  std::vector<CheckpointInfo> gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(waiting_);
  }
  if (gone.empty()) return;
  const Status removed = catalog_->RemoveObjects(gone);
  const std::lock_guard lock(mutex_);
  if (!removed) {
    waiting_.insert(waiting_.begin(), gone.begin(), gone.end());
    if (!failing_) {
      spdlog::warn("gang {}: what {} old checkpoints have left is not removed yet: {}", gang_, gone.size(),
                   removed.error().message);
    }
  }
  failing_ = !removed;
}

}  // namespace muster
