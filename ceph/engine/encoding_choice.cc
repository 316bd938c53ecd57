#include "ceph/engine/encoding_choice.h"

#include <algorithm>

namespace muster {

uint32_t EncodingChoice::Choose(uint32_t before, const Sample& sample) {
  uint32_t likely = 0;
  {
    const std::lock_guard lock(mutex_);
    likely = before != 0 ? before : last_;
    if (likely == 0 && pause_ > 0) {
      --pause_;
      return 0;
    }
    if (++since_all_tried_ >= kTryAllEvery) likely = 0;
    if (likely == 0) since_all_tried_ = 0;
  }
  if (likely != 0 && sample(likely) <= kWorthwhile) {
    Learn(likely);
    return likely;
  }
  // Of equal ones the narrowest, which is the least work.
  uint32_t best = 0;
  double least = 1;
  for (const uint32_t width : {1U, 2U, 4U, 8U}) {
    const double left = sample(width);
    if (left >= least) continue;
    least = left;
    best = width;
  }
  if (least > kWorthwhile) best = 0;
  Learn(best);
  return best;
}

void EncodingChoice::Learn(uint32_t width) {
  const std::lock_guard lock(mutex_);
  last_ = width;
  if (width != 0) {
    pause_ = next_pause_ = 0;
    return;
  }
  next_pause_ = std::min(2 * next_pause_ + 1, kLongestPause);
  pause_ = next_pause_;
}

}  // namespace muster
