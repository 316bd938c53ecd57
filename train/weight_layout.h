// Where each weight of the model lies in one flat buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::train {

// The shape of the decoder. width is a multiple of heads.
struct ModelConfig {
  int width = 128;
  int depth = 4;
  int heads = 4;
  int context = 64;
};

// One weight: rows x columns, row-major, at `offset` floats. Vectors have one row.
struct Tensor {
  std::string name;
  std::size_t offset = 0;
  int rows = 0;
  int columns = 0;
  // Uniform in [-init, init) at the start; `base` is added (the gains of the norms start at 1).
  float init = 0;
  float base = 0;

  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  template <typename T>
  [[nodiscard]] std::span<T> Of(std::span<T> flat) const {
    return flat.subspan(offset, size());
  }
};

// The weights of one block. Matrices are inputs x outputs.
struct BlockLayout {
  Tensor norm1_gain, norm1_bias;
  Tensor qkv, qkv_bias;  // width x 3 width: queries, keys, values
  Tensor out, out_bias;  // width x width
  Tensor norm2_gain, norm2_bias;
  Tensor expand, expand_bias;      // width x 4 width
  Tensor contract, contract_bias;  // 4 width x width
};

struct Layout {
  explicit Layout(const ModelConfig& config);

  Tensor tokens;     // vocabulary x width
  Tensor positions;  // context x width
  std::vector<BlockLayout> blocks;
  Tensor norm_gain, norm_bias;
  Tensor head;  // width x vocabulary
  std::size_t size = 0;

  // All of them, in the order in which they lie; they leave no gap.
  [[nodiscard]] std::vector<Tensor> Tensors() const;
};

// The weights at the start: a pure function of the seed, the same on every member.
void Initialize(const Layout& layout, std::uint64_t seed, std::span<float> parameters);

}  // namespace muster::train
