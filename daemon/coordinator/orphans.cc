#include "daemon/coordinator/orphans.h"

#include <spdlog/spdlog.h>

#include <cstdint>
#include <utility>

namespace muster {

Orphans::Orphans(Loop& loop, std::shared_ptr<Catalog> catalog, std::function<Fence()> fence,
                 Settings settings)
    : catalog_(std::move(catalog)),
      fence_(std::move(fence)),
      settings_(std::move(settings)),
      loop_(loop),
      next_(loop.Now()),
      timer_(loop),
      late_(loop) {}

void Orphans::Collect() {
  if (over_ || timer_.waiting()) return;
  const Loop::Time now = loop_.Now();
  if (now < next_) {
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(next_ - now);
    return timer_.After(rest, [this] { Collect(); });
  }
  next_ = now + settings_.pause;
  worker_.Do(Collecting(Catalog::Writers::kSome));
  late_.After(settings_.store_timeout, [this] { worker_.Do(Collecting(Catalog::Writers::kSome)); });
}

std::function<void()> Orphans::CollectSoon() {
  return [this, alive = std::weak_ptr(in_doubt_), &loop = loop_] {
    loop.Post([this, alive] {
      if (!alive.expired()) Collect();
    });
  };
}

std::function<void()> Orphans::AtTheEnd(bool all, std::function<void()> then) {
  over_ = true;
  timer_.Cancel();
  late_.Cancel();
  std::function<void()> collect = [] {};
  if (all) collect = Collecting(Catalog::Writers::kNone);
  return [this, collect = std::move(collect), then = std::move(then)] {
    worker_.Do([collect, then] {
      collect();
      then();
    });
  };
}

std::function<void(const Status&)> Orphans::CommitOver() const {
  return [in_doubt = in_doubt_](const Status& status) {
    *in_doubt = !status && status.error().code == Errc::kUnavailable;
  };
}

std::function<void()> Orphans::Collecting(Catalog::Writers writers) const {
  return [catalog = catalog_, fence = fence_(), writers, in_doubt = in_doubt_, id = settings_.gang] {
    if (writers == Catalog::Writers::kNone && *in_doubt) {
      return spdlog::warn(
          "gang {}: what unfinished checkpoints have left is not removed: the store may still carry out a "
          "commit",
          id);
    }
    const auto removed = catalog->CollectOrphans(fence, writers);
    if (removed && *removed > 0)
      spdlog::info("gang {}: removed {} objects of unfinished checkpoints", id, *removed);
    // Another generation has begun meanwhile: it collects.
    if (removed || removed.error().code == Errc::kConflict) return;
    spdlog::warn("gang {}: what unfinished checkpoints have left is not removed yet: {}", id,
                 removed.error().message);
  };
}

}  // namespace muster
