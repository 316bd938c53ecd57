#include "ceph/engine/depth.h"

#include <algorithm>

namespace muster {
namespace {

constexpr size_t kLeastRound = 32;  // operations
constexpr size_t kLongestHold = 64;
constexpr double kGain = 1.1;
constexpr double kSame = 0.97;

}  // namespace

Depth::Depth(size_t least, size_t most)
    : least_(std::max<size_t>(least, 1)), most_(std::max(most, least_)), now_(least_), settled_(least_) {
  Begin();
}

void Depth::Begin() {
  warm_ = now_;
  ended_ = 0;
}

void Depth::Ended(Time at, bool full) {
  if (!full) return Begin();
  if (warm_ > 0) {
    if (--warm_ == 0) begun_ = at;
    return;
  }
  if (++ended_ < std::max(2 * now_, kLeastRound)) return;
  const double seconds = std::chrono::duration<double>(at - begun_).count();
  RoundEnded(static_cast<double>(ended_) / std::max(seconds, 1e-9));
  Begin();
}

void Depth::RoundEnded(double rate) {
  if (trial_ == Trial::kNone) {
    rate_ = rate;
    if (++held_ >= hold_) Try();
    return;
  }
  const bool pays = rate >= rate_ * (trial_ == Trial::kMore ? kGain : kSame);
  next_ = pays == (trial_ == Trial::kMore) ? Trial::kMore : Trial::kFewer;
  hold_ = pays ? 1 : std::min(2 * hold_, kLongestHold);
  held_ = 0;
  trial_ = Trial::kNone;
  if (pays) {
    settled_ = now_;
    rate_ = rate;
  } else {
    now_ = settled_;
  }
}

void Depth::Try() {
  if (settled_ == least_) next_ = Trial::kMore;
  if (settled_ == most_) next_ = Trial::kFewer;
  if (least_ == most_) return;
  trial_ = next_;
  now_ = trial_ == Trial::kMore ? std::min(most_, settled_ + (settled_ + 1) / 2)
                                : std::max(least_, settled_ - settled_ / 3);
}

}  // namespace muster
