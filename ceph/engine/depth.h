// How many operations of a store to have under way.
#pragma once

#include <chrono>
#include <cstddef>

namespace muster {

// More of them only help as long as the store, or the way to it, is waited for; which depends on the cluster, and on what else
// it has to do. So it is tried out: now and then a round of operations goes with half as many again, or with fewer, and what
// pays is kept: more when they end at least a tenth faster, fewer when they end as fast. What does not pay is tried less and
// less often. Pure; not thread-safe.
class Depth {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Depth(size_t least, size_t most);
  [[nodiscard]] size_t now() const { return now_; }
  // An operation has ended. `full`: so many were under way that the depth was what held others up.
  void Ended(Time at, bool full);

 private:
  enum class Trial { kNone, kMore, kFewer };
  void Begin();
  void RoundEnded(double rate);
  void Try();

  const size_t least_;
  const size_t most_;
  size_t now_;
  size_t settled_;              // what a trial goes back to
  Trial trial_ = Trial::kNone;  // what this round is
  Trial next_ = Trial::kMore;   // what is tried next
  double rate_ = 0;             // of the last round with settled_, in operations a second
  size_t hold_ = 1;             // rounds between trials
  size_t held_ = 0;
  size_t warm_ = 0;  // operations that are still those of the round before
  size_t ended_ = 0;
  Time begun_{};
};

}  // namespace muster
