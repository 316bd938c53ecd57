#include "train/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "train/hash.h"
#include "train/host_ops.h"

namespace muster::train {
namespace {

constexpr ModelConfig kSmall{.width = 12, .depth = 2, .heads = 3, .context = 7};
constexpr int kBatch = 2;

Batch SomeBatch() {
  Batch batch{.batch = kBatch, .context = kSmall.context, .inputs = {}, .targets = {}};
  for (std::uint64_t i = 0; i < kBatch * 7; ++i) {
    batch.inputs.push_back(static_cast<std::uint8_t>(Hash({1, i}) % 11));  // some bytes come twice
    batch.targets.push_back(static_cast<std::uint8_t>(Hash({2, i})));
  }
  return batch;
}

double LossOf(Model& model, std::span<const float> parameters, const Batch& batch) {
  model.Forward(parameters, batch);
  return *model.Loss();
}

// Weights away from the special values of the start (zero biases, gains of one).
std::vector<float> SomeParameters(const Layout& layout) {
  std::vector<float> parameters(layout.size);
  Initialize(layout, 3, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] += 0.2F * SignedUnit(Hash({4, i}));
  return parameters;
}

// The slope of the loss along a direction within one weight, by a fourth-order difference, against the
// gradient.
TEST(Model, ItsGradientIsTheDerivativeOfItsLossForEveryWeight) {
  HostOps ops;
  Model model(ops, kSmall, kBatch);
  const Batch batch = SomeBatch();
  const std::vector<float> parameters = SomeParameters(model.layout());
  std::vector<float> gradient(parameters.size());
  (void)LossOf(model, parameters, batch);
  model.Backward(parameters, gradient);

  for (const Tensor& tensor : model.layout().Tensors()) {
    // Along the gradient's own signs, so that the slope is far above float32's noise; the random factors keep
    // it from being blind to errors that only scale.
    std::vector<float> direction(parameters.size());
    double slope = 0;
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
      const float size = 0.5F + 0.5F * std::abs(SignedUnit(Hash({5, i})));
      direction[i] = gradient[i] < 0 ? -size : size;
      slope += static_cast<double>(direction[i]) * gradient[i];
    }
    const float unit = 1 / std::sqrt(static_cast<float>(tensor.size()));
    const auto loss_at = [&](float distance) {
      std::vector<float> moved = parameters;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += distance * unit * direction[i];
      return LossOf(model, moved, batch);
    };
    constexpr float kStep = 0.04F;
    const double measured =
        (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
    EXPECT_NEAR(measured, slope * unit, 2e-3 * std::abs(slope * unit) + 2e-5) << tensor.name;
  }
}

TEST(Model, AWeightThatIsChangedAloneMovesTheLossByItsOwnGradient) {
  HostOps ops;
  Model model(ops, kSmall, kBatch);
  const Batch batch = SomeBatch();
  const std::vector<float> parameters = SomeParameters(model.layout());
  std::vector<float> gradient(parameters.size());
  (void)LossOf(model, parameters, batch);
  model.Backward(parameters, gradient);
  for (const Tensor& tensor : model.layout().Tensors()) {
    const std::size_t i = tensor.offset + Hash({6, tensor.offset}) % tensor.size();
    const auto loss_at = [&](float distance) {
      std::vector<float> moved = parameters;
      moved[i] += distance;
      return LossOf(model, moved, batch);
    };
    constexpr float kStep = 0.03F;
    const double measured =
        (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
    EXPECT_NEAR(measured, gradient[i], 0.02 * std::abs(gradient[i]) + 1e-4) << tensor.name << " at " << i;
  }
}

TEST(Model, StartsWithTheLossOfAGuess) {
  HostOps ops;
  Model model(ops, kSmall, kBatch);
  std::vector<float> parameters(model.layout().size);
  Initialize(model.layout(), 1, parameters);
  EXPECT_NEAR(LossOf(model, parameters, SomeBatch()), std::log(kVocabulary), 0.1);
}

TEST(Model, ComputesTheSameBitsAgainAndInAnotherInstance) {
  HostOps ops;
  Model first(ops, kSmall, kBatch);
  Model second(ops, kSmall, kBatch);
  const Batch batch = SomeBatch();
  const std::vector<float> parameters = SomeParameters(first.layout());
  std::vector<float> a(parameters.size());
  std::vector<float> b(parameters.size(), 7);  // what was there before does not matter
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(LossOf(first, parameters, batch), LossOf(second, parameters, batch));
    first.Backward(parameters, a);
    second.Backward(parameters, b);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  }
}

TEST(Model, APartOfTheGradientThatIsReadyDoesNotChangeAnyMore) {
  HostOps ops;
  Model model(ops, kSmall, kBatch);
  const Batch batch = SomeBatch();
  const std::vector<float> parameters = SomeParameters(model.layout());
  std::vector<float> gradient(parameters.size());
  std::vector<float> when_ready(parameters.size());
  std::size_t end = gradient.size();
  int parts = 0;
  (void)LossOf(model, parameters, batch);
  model.Backward(parameters, gradient, [&](Slice part) {
    EXPECT_EQ(part.end, end);
    ASSERT_LT(part.begin, part.end);
    end = part.begin;
    ++parts;
    std::copy_n(&gradient[part.begin], part.size(), &when_ready[part.begin]);
  });
  EXPECT_EQ(end, 0U);
  EXPECT_EQ(parts, kSmall.depth + 2);
  EXPECT_EQ(std::memcmp(when_ready.data(), gradient.data(), gradient.size() * sizeof(float)), 0);
}

TEST(Layout, LeavesNoGapAndStartsFromTheSeedAlone) {
  const Layout layout(kSmall);
  std::size_t next = 0;
  for (const Tensor& tensor : layout.Tensors()) {
    EXPECT_EQ(tensor.offset, next) << tensor.name;
    next += tensor.size();
  }
  EXPECT_EQ(next, layout.size);
  std::vector<float> a(layout.size);
  std::vector<float> b(layout.size);
  std::vector<float> c(layout.size);
  Initialize(layout, 1, a);
  Initialize(layout, 1, b);
  Initialize(layout, 2, c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(Layout, TheDemoHasAboutAMillionWeights) {
  EXPECT_NEAR(static_cast<double>(Layout(ModelConfig()).size), 1e6, 2e5);
}

}  // namespace
}  // namespace muster::train
