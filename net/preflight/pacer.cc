#include "net/preflight/pacer.h"

#include <algorithm>

namespace muster::preflight {
namespace {

// What a packet has besides its payload: Ethernet, IP, UDP, RDMA's own header and checksums, and the gap behind a frame.
constexpr uint64_t kHeaders = 82;
// A sender that was held up by its host for longer does not catch up.
constexpr auto kCatchUp = std::chrono::milliseconds(1);

}  // namespace

Pacer::Pacer(Clock::time_point began, uint64_t message, uint64_t pace, uint64_t path_mtu) : due_(began) {
  if (pace == 0) return;
  const uint64_t bytes = message + message / path_mtu * kHeaders;
  const std::chrono::duration<double> taken(static_cast<double>(bytes) / static_cast<double>(pace));
  gap_ = std::chrono::duration_cast<Clock::duration>(taken);
}

void Pacer::Posted(Clock::time_point now) {
  due_ = std::max(due_, now - kCatchUp) + gap_;
}

size_t NextPair(std::span<const uint32_t> under_way, size_t last) {
  size_t best = (last + 1) % under_way.size();
  for (size_t i = 2; i <= under_way.size(); ++i) {
    const size_t pair = (last + i) % under_way.size();
    if (under_way[pair] < under_way[best]) best = pair;
  }
  return best;
}

}  // namespace muster::preflight
