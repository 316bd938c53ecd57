// Memory that is large, and that the loop must not let go of itself: to unmap gigabytes takes time that it has not.
#pragma once

#include <memory>
#include <utility>

#include "base/worker.h"

namespace muster {

// Holds something that is destroyed on the worker's thread, whoever drops it last: on its own only when there is no worker any
// more.
template <typename T>
std::shared_ptr<T> LetGoBy(const std::shared_ptr<Worker>& worker, T value) {
  return {new T(std::move(value)), [weak = std::weak_ptr(worker)](T* held) {
            std::shared_ptr<T> last(held);
            if (const auto alive = weak.lock()) alive->Do([last = std::move(last)] {});
          }};
}

}  // namespace muster
