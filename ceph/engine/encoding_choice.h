// Which chunks of a shard are compressed, and by which width they are shuffled: decided by samples, which become few where
// compression does not pay.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace muster {

// What a sample must promise to be left, at most.
inline constexpr double kWorthwhile = 0.9;

// Chunks are most often as their predecessor was, and as they were in the checkpoint before. Thread-safe.
class EncodingChoice {
 public:
  // How much of a chunk would be left after shuffling it by a width: see ChunkCodec::Sample.
  using Sample = std::function<double(uint32_t width)>;

  // The width for the next chunk, 0: it stays as it is. `before`: what its width was in an older checkpoint, 0 if it had
  // none. No sample is taken of most chunks when the last ones were not worth it, and one of most chunks else.
  uint32_t Choose(uint32_t before, const Sample& sample);
  // The chunk that it was chosen for did not become small enough: the samples were not like the rest.
  void DidNotPay() { Learn(0); }

 private:
  // Widths that were not tried for so many chunks may be better by now.
  static constexpr uint32_t kTryAllEvery = 16;
  static constexpr uint32_t kLongestPause = 15;

  void Learn(uint32_t width);

  std::mutex mutex_;
  uint32_t last_ = 0;             // what the last chunk got
  uint32_t since_all_tried_ = 0;  // chunks
  uint32_t pause_ = 0;            // chunks to come that are not sampled
  uint32_t next_pause_ = 0;
};

}  // namespace muster
