#include "net/train/model.h"

#include <algorithm>

#include "net/train/layers.h"

namespace muster::train {
namespace {

void Add(std::vector<float>& to, const std::vector<float>& values) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

// Hands the flat buffer's part for a tensor to the layers, which take pointers.
template <typename T>
T* In(std::span<T> flat, const Tensor& tensor) {
  return tensor.Of(flat).data();
}

}  // namespace

Model::Model(const ModelConfig& config, int batch)
    : config_(config), layout_(config), batch_(batch), rows_(batch * config.context) {
  const auto rows = static_cast<std::size_t>(rows_);
  const auto width = static_cast<std::size_t>(config.width);
  const auto square = static_cast<std::size_t>(config.context) * static_cast<std::size_t>(config.context);
  const auto heads = static_cast<std::size_t>(batch) * static_cast<std::size_t>(config.heads);
  blocks_.resize(static_cast<std::size_t>(config.depth));
  for (Block& block : blocks_) {
    for (Values* values : {&block.input, &block.normal1, &block.attended, &block.middle, &block.normal2}) {
      values->resize(rows * width);
    }
    for (Values* values : {&block.mean1, &block.inverse1, &block.mean2, &block.inverse2})
      values->resize(rows);
    for (Values* values : {&block.expanded, &block.gate, &block.active}) values->resize(rows * 4 * width);
    block.qkv.resize(rows * 3 * width);
    block.attention.resize(heads * square);
  }
  for (Values* values : {&stream_, &normal_, &d_stream_, &d_rows_}) values->resize(rows * width);
  for (Values* values : {&mean_, &inverse_}) values->resize(rows);
  logits_.resize(rows * kVocabulary);
  d_wide_.resize(rows * 4 * width);
  d_qkv_.resize(rows * 3 * width);
  d_scores_.resize(square);
}

double Model::Forward(std::span<const float> parameters, const Batch& batch) {
  const int width = config_.width;
  const float* tokens = In(parameters, layout_.tokens);
  const float* positions = In(parameters, layout_.positions);
  for (int row = 0; row < rows_; ++row) {
    const float* token =
        tokens + static_cast<std::ptrdiff_t>(batch.inputs[static_cast<std::size_t>(row)]) * width;
    const float* position = positions + static_cast<std::ptrdiff_t>(row % config_.context) * width;
    float* out = stream_.data() + static_cast<std::ptrdiff_t>(row) * width;
    for (int i = 0; i < width; ++i) out[i] = token[i] + position[i];
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    BlockForward(layout_.blocks[i], parameters, blocks_[i], stream_);
  NormForward(rows_, width, stream_.data(), In(parameters, layout_.norm_gain),
              In(parameters, layout_.norm_bias), normal_.data(), mean_.data(), inverse_.data());
  LinearForward({rows_, width, kVocabulary}, normal_.data(), In(parameters, layout_.head), nullptr,
                logits_.data());
  return CrossEntropy(rows_, kVocabulary, logits_.data(), batch.targets.data());
}

void Model::BlockForward(const BlockLayout& layout, std::span<const float> parameters, Block& block,
                         Values& stream) {
  const int width = config_.width;
  block.input = stream;
  NormForward(rows_, width, block.input.data(), In(parameters, layout.norm1_gain),
              In(parameters, layout.norm1_bias), block.normal1.data(), block.mean1.data(),
              block.inverse1.data());
  LinearForward({rows_, width, 3 * width}, block.normal1.data(), In(parameters, layout.qkv),
                In(parameters, layout.qkv_bias), block.qkv.data());
  AttentionForward({batch_, config_.context, config_.heads, width}, block.qkv.data(), block.attention.data(),
                   block.attended.data());
  LinearForward({rows_, width, width}, block.attended.data(), In(parameters, layout.out),
                In(parameters, layout.out_bias), block.middle.data());
  Add(block.middle, block.input);

  NormForward(rows_, width, block.middle.data(), In(parameters, layout.norm2_gain),
              In(parameters, layout.norm2_bias), block.normal2.data(), block.mean2.data(),
              block.inverse2.data());
  LinearForward({rows_, width, 4 * width}, block.normal2.data(), In(parameters, layout.expand),
                In(parameters, layout.expand_bias), block.expanded.data());
  GeluForward(block.expanded, block.active, block.gate);
  LinearForward({rows_, 4 * width, width}, block.active.data(), In(parameters, layout.contract),
                In(parameters, layout.contract_bias), stream.data());
  Add(stream, block.middle);
}

void Model::Backward(std::span<const float> parameters, const Batch& batch, std::span<float> gradient) {
  const int width = config_.width;
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  CrossEntropyBackward(rows_, kVocabulary, logits_.data(), batch.targets.data());
  LinearBackward({rows_, width, kVocabulary}, normal_.data(), In(parameters, layout_.head), logits_.data(),
                 d_rows_.data(), In(gradient, layout_.head), nullptr);
  std::fill(d_stream_.begin(), d_stream_.end(), 0.0F);
  NormBackwardAdd(rows_, width, stream_.data(), In(parameters, layout_.norm_gain), mean_.data(),
                  inverse_.data(), d_rows_.data(), d_stream_.data(), In(gradient, layout_.norm_gain),
                  In(gradient, layout_.norm_bias));
  for (std::size_t i = blocks_.size(); i-- > 0;)
    BlockBackward(layout_.blocks[i], parameters, blocks_[i], gradient);
  float* tokens = In(gradient, layout_.tokens);
  float* positions = In(gradient, layout_.positions);
  for (int row = 0; row < rows_; ++row) {
    const float* d = d_stream_.data() + static_cast<std::ptrdiff_t>(row) * width;
    float* token = tokens + static_cast<std::ptrdiff_t>(batch.inputs[static_cast<std::size_t>(row)]) * width;
    float* position = positions + static_cast<std::ptrdiff_t>(row % config_.context) * width;
    for (int i = 0; i < width; ++i) {
      token[i] += d[i];
      position[i] += d[i];
    }
  }
}

// d_stream_ is the derivative by the block's result before, by its input after.
void Model::BlockBackward(const BlockLayout& layout, std::span<const float> parameters, const Block& block,
                          std::span<float> gradient) {
  const int width = config_.width;
  LinearBackward({rows_, 4 * width, width}, block.active.data(), In(parameters, layout.contract),
                 d_stream_.data(), d_wide_.data(), In(gradient, layout.contract),
                 In(gradient, layout.contract_bias));
  GeluBackward(block.expanded, block.gate, d_wide_);
  LinearBackward({rows_, width, 4 * width}, block.normal2.data(), In(parameters, layout.expand),
                 d_wide_.data(), d_rows_.data(), In(gradient, layout.expand),
                 In(gradient, layout.expand_bias));
  NormBackwardAdd(rows_, width, block.middle.data(), In(parameters, layout.norm2_gain), block.mean2.data(),
                  block.inverse2.data(), d_rows_.data(), d_stream_.data(), In(gradient, layout.norm2_gain),
                  In(gradient, layout.norm2_bias));

  LinearBackward({rows_, width, width}, block.attended.data(), In(parameters, layout.out), d_stream_.data(),
                 d_rows_.data(), In(gradient, layout.out), In(gradient, layout.out_bias));
  AttentionBackward({batch_, config_.context, config_.heads, width}, block.qkv.data(), block.attention.data(),
                    d_rows_.data(), d_qkv_.data(), d_scores_.data());
  LinearBackward({rows_, width, 3 * width}, block.normal1.data(), In(parameters, layout.qkv), d_qkv_.data(),
                 d_rows_.data(), In(gradient, layout.qkv), In(gradient, layout.qkv_bias));
  NormBackwardAdd(rows_, width, block.input.data(), In(parameters, layout.norm1_gain), block.mean1.data(),
                  block.inverse1.data(), d_rows_.data(), d_stream_.data(), In(gradient, layout.norm1_gain),
                  In(gradient, layout.norm1_bias));
}

}  // namespace muster::train
