// A decoder-only transformer over bytes: learned positions, norm before each part, GELU, causal attention, a
// head of its own. Plain float32, forward and backward written out.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "train/data.h"
#include "train/ops.h"
#include "train/state.h"
#include "train/weight_layout.h"

namespace muster::train {

// Holds what a forward pass leaves for the backward pass; the weights and their gradient are the caller's, in the memory of
// the Ops, flat, in the order of layout(). Not thread-safe.
class Model {
 public:
  // `batch`: sequences in every batch. `ops` outlives this.
  Model(Ops& ops, const ModelConfig& config, int batch);

  [[nodiscard]] const Layout& layout() const { return layout_; }

  // Computes the loss of a batch, which is left alone until Loss.
  void Forward(std::span<const float> parameters, const Batch& batch);

  // The mean loss over the positions of the last Forward's batch, in nats. Waits until all is done that the Ops were given.
  [[nodiscard]] Result<double> Loss();

  // Sets `gradient` to the derivative of the last Forward's loss, which must have been of these weights. Once for each
  // Forward: it uses up what that left. `ready` is called from the gradient's end to its beginning, for each part of it that
  // will not change any more: the head with the last norm, each block, and the embeddings.
  void Backward(
      std::span<const float> parameters, std::span<float> gradient,
      const std::function<void(Slice)>& ready = [](Slice) {});

 private:
  // What a block keeps, a row for each position.
  struct Block {
    Buffer input, normal1, mean1, inverse1, qkv, attention, attended;
    Buffer middle, normal2, mean2, inverse2, expanded, gate, active;
  };

  // The last batch, in the memory of the Ops.
  [[nodiscard]] std::uint8_t* inputs() const;
  [[nodiscard]] std::uint8_t* targets() const;

  void BlockForward(const BlockLayout& layout, std::span<const float> parameters, Block& block);
  void BlockBackward(const BlockLayout& layout, std::span<const float> parameters, const Block& block,
                     std::span<float> gradient);

  Ops& ops_;
  const ModelConfig config_;
  const Layout layout_;
  const int batch_;
  const int rows_;
  std::vector<Block> blocks_;
  Buffer tokens_;  // bytes: the inputs, and then the targets
  Buffer stream_;  // the residual stream; after Forward: what the last norm reads
  Buffer normal_, mean_, inverse_, logits_;
  Buffer loss_;  // one double
  Buffer d_stream_, d_rows_, d_wide_, d_qkv_;
};

}  // namespace muster::train
