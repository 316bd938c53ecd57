#include "train/host_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train/hash.h"

namespace muster::train {
namespace {

std::vector<float> Noise(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = SignedUnit(Hash({seed, i}));
  return values;
}

TEST(HostOps, APositionDoesNotSeeWhatComesAfterIt) {
  constexpr AttentionShape kShape{2, 6, 2, 8};
  std::vector<float> qkv = Noise(2 * 6 * 24, 1);
  std::vector<float> weights(2 * 2 * 6 * 6);
  std::vector<float> before(2 * 6 * 8);
  std::vector<float> after(before.size());
  HostOps().AttentionForward(kShape, qkv.data(), weights.data(), before.data());
  for (std::size_t i = 4 * 24; i < 6 * 24; ++i) qkv[i] += 1;  // positions 4 and 5 of the first sequence
  HostOps().AttentionForward(kShape, qkv.data(), weights.data(), after.data());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool later = i >= 4 * 8 && i < 6 * 8;
    EXPECT_EQ(before[i] == after[i], !later) << i;
  }
}

TEST(HostOps, AttentionWeightsSumToOne) {
  constexpr AttentionShape kShape{1, 5, 1, 4};
  const std::vector<float> qkv = Noise(5 * 12, 2);
  std::vector<float> weights(25);
  std::vector<float> y(20);
  HostOps().AttentionForward(kShape, qkv.data(), weights.data(), y.data());
  for (std::size_t row = 0; row < 5; ++row) {
    float sum = 0;
    for (std::size_t i = 0; i < 5; ++i) sum += weights[row * 5 + i];
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  EXPECT_EQ(weights[0], 1);
}

TEST(HostOps, GeluIsTheTanhFormAndHoldsAtTheEnds) {
  const std::vector<float> x = {-100, -3, -1, 0, 0.5, 2, 100};
  std::vector<float> y(x.size());
  std::vector<float> gate(x.size());
  HostOps().GeluForward(x, y, gate);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    EXPECT_NEAR(y[i], 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))), 1e-5) << v;
  }
}

TEST(HostOps, CrossEntropyOfEqualScoresIsTheLogarithmOfTheirNumber) {
  const std::vector<float> logits(20, 1000);  // large: the exponent must not overflow
  const std::vector<std::uint8_t> targets = {0, 9};
  double loss = 0;
  HostOps().CrossEntropy({2, 10}, logits.data(), targets.data(), &loss);
  EXPECT_NEAR(loss, std::log(10), 1e-6);
}

double Norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

TEST(HostOps, AGradientAboveTheLimitIsScaledToIt) {
  std::vector<float> gradient(19, 2);
  HostOps().ClipNorm(gradient, 1);
  EXPECT_NEAR(Norm(gradient), 1, 1e-6);
  std::vector<float> small(19, 0.01F);
  const std::vector<float> before = small;
  HostOps().ClipNorm(small, 1);
  EXPECT_EQ(small, before);
}

}  // namespace
}  // namespace muster::train
