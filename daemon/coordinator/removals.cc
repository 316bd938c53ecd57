#include "daemon/coordinator/removals.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace muster {
namespace {

// Checkpoints. More than the second are forgotten while the store removes nothing: then they are orphans.
constexpr size_t kMostWaiting = 4;
constexpr size_t kMostFailed = 64;

}  // namespace

Removals::Removals(std::shared_ptr<Catalog> catalog, std::string gang, std::function<void()> orphans)
    : catalog_(std::move(catalog)), gang_(std::move(gang)), orphans_(std::move(orphans)) {}

void Removals::Add(std::vector<CheckpointInfo> gone) {
  if (gone.empty()) return;
  bool now = false;
  bool queue = false;
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.end(), gone.begin(), gone.end());
    while (waiting_.size() > kMostFailed) waiting_.erase(waiting_.begin());
    now = waiting_.size() > kMostWaiting && !failing_;
    queue = !std::exchange(queued_, true);
  }
  if (queue) worker_.Do([this] { RemoveWaiting(SIZE_MAX); });
  if (now) RemoveWaiting(1);
}

void Removals::AtTheEnd(std::function<void()> then) {
  worker_.Do([this, then = std::move(then)] {
    RemoveWaiting(SIZE_MAX);
    then();
  });
}

// The oldest of them.
void Removals::RemoveWaiting(size_t most) {
  std::vector<CheckpointInfo> gone;
  {
    const std::lock_guard lock(mutex_);
    if (most >= waiting_.size()) queued_ = false;
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(most, waiting_.size()));
    gone.assign(waiting_.begin(), end);
    waiting_.erase(waiting_.begin(), end);
  }
  if (gone.empty()) return;
  bool orphans = false;
  const Status removed = catalog_->RemoveObjects(gone, &orphans);
  if (removed && orphans) orphans_();
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
