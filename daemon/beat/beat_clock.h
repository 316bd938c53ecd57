// The clock that leases are counted in, and waiting by it. Tests give one whose time they move themselves.
#pragma once

#include <poll.h>

#include <memory>
#include <span>

#include "daemon/lease/types.h"

namespace muster {

class BeatClock {
 public:
  virtual ~BeatClock() = default;
  // Any thread.
  [[nodiscard]] virtual lease::Nanos Now() const = 0;
  // Until one of the descriptors is ready or `timeout` has passed; it may also return sooner. The beats' thread.
  virtual void Wait(std::span<pollfd> polled, lease::Nanos timeout) = 0;

  // CLOCK_BOOTTIME.
  static std::shared_ptr<BeatClock> OfThisHost();
};

}  // namespace muster
