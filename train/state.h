// All that training carries from one step to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "train/ops.h"

namespace muster::train {

// A part [begin, end) of a flat buffer.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

// The part of `count` elements that member `rank` of `size` keeps: the parts follow one another without gap,
// their lengths differ by one at most.
[[nodiscard]] Slice SliceOf(std::size_t count, int rank, int size);

// Weights and Adam's moments in one buffer, in the memory of `ops`, which outlives it. Every member has the same bits in it
// after every step.
class TrainingState {
 public:
  TrainingState(Ops& ops, std::size_t parameters)
      : ops_(ops), parameters_(parameters), values_(ops, 3 * parameters) {}

  [[nodiscard]] Ops& ops() const { return ops_; }
  [[nodiscard]] std::span<float> all() { return values_.values(); }
  [[nodiscard]] std::span<float> parameters() { return all().first(parameters_); }
  [[nodiscard]] std::span<float> first_moment() { return all().subspan(parameters_, parameters_); }
  [[nodiscard]] std::span<float> second_moment() { return all().subspan(2 * parameters_, parameters_); }

  // Steps done, and the mean loss over all members of the last one.
  std::uint64_t step = 0;
  double loss = 0;

 private:
  Ops& ops_;
  std::size_t parameters_;
  Buffer values_;
};

}  // namespace muster::train
