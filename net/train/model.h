// A decoder-only transformer over bytes: learned positions, norm before each part, GELU, causal attention, a
// head of its own. Plain float32, forward and backward written out.
#pragma once

#include <span>
#include <vector>

#include "net/train/data.h"
#include "net/train/weight_layout.h"

namespace muster::train {

// Holds what a forward pass leaves for the backward pass; the weights and their gradient are the caller's,
// flat, in the order of layout(). Not thread-safe.
class Model {
 public:
  // `batch`: sequences in every batch.
  Model(const ModelConfig& config, int batch);

  [[nodiscard]] const Layout& layout() const { return layout_; }

  // The mean loss over the batch's positions, in nats.
  [[nodiscard]] double Forward(std::span<const float> parameters, const Batch& batch);

  // Sets `gradient` to the derivative of the last Forward's loss, which must have been of this batch and
  // weights. Once for each Forward: it uses up what that left.
  void Backward(std::span<const float> parameters, const Batch& batch, std::span<float> gradient);

 private:
  using Values = std::vector<float>;

  // What a block keeps, a row for each position.
  struct Block {
    Values input, normal1, mean1, inverse1, qkv, attention, attended;
    Values middle, normal2, mean2, inverse2, expanded, gate, active;
  };

  void BlockForward(const BlockLayout& layout, std::span<const float> parameters, Block& block,
                    Values& stream);
  void BlockBackward(const BlockLayout& layout, std::span<const float> parameters, const Block& block,
                     std::span<float> gradient);

  const ModelConfig config_;
  const Layout layout_;
  const int batch_;
  const int rows_;
  std::vector<Block> blocks_;
  Values stream_;  // the residual stream; after Forward: what the last norm reads
  Values normal_, mean_, inverse_, logits_;
  Values d_stream_, d_rows_, d_wide_, d_qkv_, d_scores_;
};

}  // namespace muster::train
