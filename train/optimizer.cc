#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace muster::train {

void AdamStep(Ops& ops, const AdamOptions& options, const Layout& layout, std::uint64_t step, float rate,
              std::span<const float> gradient, std::span<float> parameters, std::span<float> first_moment,
              std::span<float> second_moment) {
  const auto count = static_cast<double>(step);
  AdamUpdate update{
      .beta1 = options.beta1,
      .beta2 = options.beta2,
      .correct1 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(options.beta1), count))),
      .correct2 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(options.beta2), count))),
      .rate = rate,
      .keep = 1,
      .epsilon = options.epsilon};
  for (const Tensor& tensor : layout.Tensors()) {
    update.keep = tensor.rows > 1 ? 1 - rate * options.weight_decay : 1.0F;
    ops.Adam(update, tensor.Of(gradient), tensor.Of(parameters), tensor.Of(first_moment),
             tensor.Of(second_moment));
  }
}

float LearningRate(float peak, std::uint64_t step, std::uint64_t steps) {
  const std::uint64_t warm = std::clamp<std::uint64_t>(steps / 10, 1, 100);
  if (step <= warm) return peak * static_cast<float>(step) / static_cast<float>(warm);
  if (step >= steps) return peak * 0.1F;
  const double done = static_cast<double>(step - warm) / static_cast<double>(steps - warm);
  return static_cast<float>(peak * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * done))));
}

}  // namespace muster::train
