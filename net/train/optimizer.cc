#include "net/train/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace muster::train {

void AdamStep(const AdamOptions& options, const Layout& layout, std::uint64_t step, float rate,
              std::span<const float> gradient, std::span<float> parameters, std::span<float> first_moment,
              std::span<float> second_moment) {
  const auto count = static_cast<double>(step);
  const auto correct1 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(options.beta1), count)));
  const auto correct2 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(options.beta2), count)));
  const float fresh1 = 1 - options.beta1;
  const float fresh2 = 1 - options.beta2;
  for (const Tensor& tensor : layout.Tensors()) {
    const float keep = tensor.rows > 1 ? 1 - rate * options.weight_decay : 1.0F;
    const float* g = tensor.Of(gradient).data();
    float* p = tensor.Of(parameters).data();
    float* m = tensor.Of(first_moment).data();
    float* v = tensor.Of(second_moment).data();
    const std::size_t size = tensor.size();
    for (std::size_t i = 0; i < size; ++i) {
      m[i] = options.beta1 * m[i] + fresh1 * g[i];
      v[i] = options.beta2 * v[i] + fresh2 * g[i] * g[i];
      p[i] = p[i] * keep - rate * (m[i] * correct1) / (std::sqrt(v[i] * correct2) + options.epsilon);
    }
  }
}

double ClipNorm(std::span<float> gradient, double limit) {
  // Eight sums side by side, added in a fixed order: the compiler may use vector registers and the bits stay
  // the same.
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= gradient.size(); i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane) {
      const double value = gradient[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < gradient.size(); ++i) total += static_cast<double>(gradient[i]) * gradient[i];
  const double norm = std::sqrt(total);
  if (norm > limit) {
    const auto scale = static_cast<float>(limit / norm);
    for (float& value : gradient) value *= scale;
  }
  return norm;
}

float LearningRate(float peak, std::uint64_t step, std::uint64_t steps) {
  const std::uint64_t warm = std::clamp<std::uint64_t>(steps / 10, 1, 100);
  if (step <= warm) return peak * static_cast<float>(step) / static_cast<float>(warm);
  if (step >= steps) return peak * 0.1F;
  const double done = static_cast<double>(step - warm) / static_cast<double>(steps - warm);
  return static_cast<float>(peak * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * done))));
}

}  // namespace muster::train
