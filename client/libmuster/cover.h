// Puts a wanted part together from those that there are: each element is taken once, from the first that has it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/array.h"
#include "client/libmuster/slice.h"

namespace muster::client {

class Cover {
 public:
  Cover() = default;

  enum class Taken { kDone, kNoMemory, kTooMany };

  // Begins with everything missing. False when there is no memory.
  [[nodiscard]] bool Begin(const Box& wanted, uint32_t dims);
  // Adds to `pieces` what is missing so far and `part` has.
  Taken Take(const Box& part, Array<Box>* pieces);
  [[nodiscard]] bool complete() const { return missing_.size() == 0; }
  // One that is missing.
  [[nodiscard]] const Box& missing() const { return missing_[0]; }

 private:
  // What is missing may be cut into so many pieces; real divisions of a tensor stay far below.
  static constexpr size_t kMost = 1 << 16;

  uint32_t dims_ = 0;
  Array<Box> missing_;
};

}  // namespace muster::client
