#include "daemon/hang/progress_reader.h"

namespace muster::hang {
namespace {

constexpr int kTries = 4;  // a write takes nanoseconds; one that was interrupted in its middle stays odd

}  // namespace

std::optional<Progressed> ReadProgress(const wire::StepPage& page) {
  if (__atomic_load_n(&page.magic, __ATOMIC_RELAXED) != wire::kStepPageMagic) return std::nullopt;
  Progressed read;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = __atomic_load_n(&page.sequence, __ATOMIC_ACQUIRE);
    read.step = __atomic_load_n(&page.step, __ATOMIC_ACQUIRE);
    read.calls = __atomic_load_n(&page.calls, __ATOMIC_ACQUIRE);
    read.monotonic_ns = __atomic_load_n(&page.monotonic_ns, __ATOMIC_ACQUIRE);
    if (before % 2 == 0 && __atomic_load_n(&page.sequence, __ATOMIC_ACQUIRE) == before) break;
  }
  if (read.step == wire::kNoStep || read.calls == 0) return std::nullopt;
  return read;
}

}  // namespace muster::hang
