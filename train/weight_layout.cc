#include "train/weight_layout.h"

#include <cmath>
#include <cstdint>

#include "train/data.h"
#include "train/hash.h"

namespace muster::train {
namespace {

// A uniform distribution of [-a, a) has the standard deviation a / sqrt(3).
float UniformFor(double deviation) {
  return static_cast<float>(deviation * std::sqrt(3.0));
}

class Placer {
 public:
  explicit Placer(std::size_t& next) : next_(next) {}

  Tensor Place(std::string name, int rows, int columns, float init, float base = 0) {
    Tensor tensor{std::move(name), next_, rows, columns, init, base};
    next_ += tensor.size();
    return tensor;
  }
  Tensor Vector(std::string name, int columns, float base = 0) {
    return Place(std::move(name), 1, columns, 0, base);
  }

 private:
  std::size_t& next_;
};

}  // namespace

Layout::Layout(const ModelConfig& config) {
  const int width = config.width;
  const float embedding = UniformFor(0.02);
  const float from_width = UniformFor(1 / std::sqrt(width));
  // What a block adds to the residual stream starts smaller the more blocks there are.
  const double share = 1 / std::sqrt(2.0 * config.depth);
  const float residual = UniformFor(share / std::sqrt(width));
  const float residual4 = UniformFor(share / std::sqrt(4.0 * width));

  Placer placer(size);
  tokens = placer.Place("tokens", kVocabulary, width, embedding);
  positions = placer.Place("positions", config.context, width, embedding);
  for (int i = 0; i < config.depth; ++i) {
    const std::string prefix = "block" + std::to_string(i) + ".";
    BlockLayout block;
    block.norm1_gain = placer.Vector(prefix + "norm1.gain", width, 1);
    block.norm1_bias = placer.Vector(prefix + "norm1.bias", width);
    block.qkv = placer.Place(prefix + "qkv", width, 3 * width, from_width);
    block.qkv_bias = placer.Vector(prefix + "qkv.bias", 3 * width);
    block.out = placer.Place(prefix + "out", width, width, residual);
    block.out_bias = placer.Vector(prefix + "out.bias", width);
    block.norm2_gain = placer.Vector(prefix + "norm2.gain", width, 1);
    block.norm2_bias = placer.Vector(prefix + "norm2.bias", width);
    block.expand = placer.Place(prefix + "expand", width, 4 * width, from_width);
    block.expand_bias = placer.Vector(prefix + "expand.bias", 4 * width);
    block.contract = placer.Place(prefix + "contract", 4 * width, width, residual4);
    block.contract_bias = placer.Vector(prefix + "contract.bias", width);
    blocks.push_back(std::move(block));
  }
  norm_gain = placer.Vector("norm.gain", width, 1);
  norm_bias = placer.Vector("norm.bias", width);
  head = placer.Place("head", width, kVocabulary, embedding);
}

std::vector<Tensor> Layout::Tensors() const {
  std::vector<Tensor> all = {tokens, positions};
  for (const BlockLayout& b : blocks) {
    all.insert(all.end(), {b.norm1_gain, b.norm1_bias, b.qkv, b.qkv_bias, b.out, b.out_bias, b.norm2_gain,
                           b.norm2_bias, b.expand, b.expand_bias, b.contract, b.contract_bias});
  }
  all.insert(all.end(), {norm_gain, norm_bias, head});
  return all;
}

void Initialize(const Layout& layout, std::uint64_t seed, std::span<float> parameters) {
  for (const Tensor& tensor : layout.Tensors()) {
    const std::uint64_t stream = Hash({seed, tensor.offset});
    std::uint64_t counter = 0;
    for (float& value : tensor.Of(parameters)) {
      value = tensor.base;
      if (tensor.init != 0) value += tensor.init * SignedUnit(Mix(stream + counter++));
    }
  }
}

}  // namespace muster::train
