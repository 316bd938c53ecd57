// AdamW on flat buffers, and the learning rate as a function of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "train/ops.h"
#include "train/weight_layout.h"

namespace muster::train {

struct AdamOptions {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  // Of matrices; vectors (norms, biases) are left alone.
  float weight_decay = 0.1F;
};

// One update, in place, of buffers in the memory of `ops`. `step` counts from 1. Each element depends on nothing but its
// own four values, so members with equal buffers stay equal bit for bit.
void AdamStep(Ops& ops, const AdamOptions& options, const Layout& layout, std::uint64_t step, float rate,
              std::span<const float> gradient, std::span<float> parameters, std::span<float> first_moment,
              std::span<float> second_moment);

// Rises over the first tenth of `steps` (at most 100), then falls along a cosine to a tenth of `peak`. `step`
// from 1.
[[nodiscard]] float LearningRate(float peak, std::uint64_t step, std::uint64_t steps);

}  // namespace muster::train
