#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train/hash.h"
#include "train/host_ops.h"

namespace muster::train {
namespace {

TEST(Optimizer, AnUpdateIsAdamsWithDecayOfMatricesOnly) {
  const Layout layout({.width = 4, .depth = 1, .heads = 1, .context = 2});
  const AdamOptions options;
  HostOps ops;
  std::vector<float> p(layout.size);
  std::vector<float> m(layout.size);
  std::vector<float> v(layout.size);
  std::vector<float> g(layout.size);
  Initialize(layout, 1, p);
  std::vector<double> ep(p.begin(), p.end());
  std::vector<double> em(layout.size);
  std::vector<double> ev(layout.size);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = SignedUnit(Hash({step, i}));
    AdamStep(ops, options, layout, step, 0.01F, g, p, m, v);
    for (const Tensor& tensor : layout.Tensors()) {
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
        const auto n = static_cast<double>(step);
        em[i] = 0.9 * em[i] + 0.1 * g[i];
        ev[i] = 0.95 * ev[i] + 0.05 * g[i] * g[i];
        if (tensor.rows > 1) ep[i] -= 0.01 * 0.1 * ep[i];
        ep[i] -=
            0.01 * (em[i] / (1 - std::pow(0.9, n))) / (std::sqrt(ev[i] / (1 - std::pow(0.95, n))) + 1e-8);
        ASSERT_NEAR(p[i], ep[i], 1e-5) << tensor.name << " at step " << step;
      }
    }
  }
}

TEST(Optimizer, TheRateRisesThenFallsToATenth) {
  EXPECT_FLOAT_EQ(LearningRate(1, 50, 2000), 0.5F);
  EXPECT_FLOAT_EQ(LearningRate(1, 100, 2000), 1);
  for (std::uint64_t step = 101; step <= 2000; ++step) {
    EXPECT_LT(LearningRate(1, step, 2000), LearningRate(1, step - 1, 2000));
  }
  EXPECT_FLOAT_EQ(LearningRate(1, 2000, 2000), 0.1F);
  EXPECT_FLOAT_EQ(LearningRate(1, 1, 1), 1);
}

}  // namespace
}  // namespace muster::train
