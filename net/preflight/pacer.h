// The schedule of a measurement's RDMA writes: when the next write is due, and over which queue pair it goes. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace muster::preflight {

class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  // `message`: bytes of a write; `pace`: bytes/s on the wire, 0: as fast as the link takes them; `path_mtu`: bytes of a packet's payload.
  Pacer(Clock::time_point began, uint64_t message, uint64_t pace, uint64_t path_mtu);

  [[nodiscard]] bool Due(Clock::time_point now) const { return due_ <= now; }
  void Posted(Clock::time_point now);
  // From one write to the next.
  [[nodiscard]] Clock::duration gap() const { return gap_; }

 private:
  Clock::duration gap_{0};
  Clock::time_point due_;
};

// The queue pair of the next write: of the pairs with the fewest writes under way the first behind `last`, the pair used last. So all pairs
// are used. Each has its own UDP source port, and by that its own path through the switches.
size_t NextPair(std::span<const uint32_t> under_way, size_t last);

}  // namespace muster::preflight
