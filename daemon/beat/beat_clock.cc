#include "daemon/beat/beat_clock.h"

#include <ctime>

#include "base/clock.h"

namespace muster {
namespace {

class HostClock final : public BeatClock {
 public:
  [[nodiscard]] lease::Nanos Now() const override { return BoottimeNs(); }
  void Wait(std::span<pollfd> polled, lease::Nanos timeout) override {
    const timespec time{timeout / 1'000'000'000, timeout % 1'000'000'000};
    ::ppoll(polled.data(), polled.size(), &time, nullptr);
  }
};

}  // namespace

std::shared_ptr<BeatClock> BeatClock::OfThisHost() {
  static const std::shared_ptr<BeatClock> clock = std::make_shared<HostClock>();
  return clock;
}

}  // namespace muster
