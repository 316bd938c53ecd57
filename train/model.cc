#include "train/model.h"

#include <utility>

namespace muster::train {
namespace {

// Hands the flat buffer's part for a tensor to the layers, which take pointers.
template <typename T>
T* In(std::span<T> flat, const Tensor& tensor) {
  return tensor.Of(flat).data();
}

}  // namespace

Model::Model(Ops& ops, const ModelConfig& config, int batch)
    : ops_(ops), config_(config), layout_(config), batch_(batch), rows_(batch * config.context) {
  const auto rows = static_cast<std::size_t>(rows_);
  const auto width = static_cast<std::size_t>(config.width);
  const auto square = static_cast<std::size_t>(config.context) * static_cast<std::size_t>(config.context);
  const auto heads = static_cast<std::size_t>(batch) * static_cast<std::size_t>(config.heads);
  const auto make = [&ops](std::initializer_list<Buffer*> buffers, std::size_t floats) {
    for (Buffer* buffer : buffers) *buffer = Buffer(ops, floats);
  };
  blocks_.resize(static_cast<std::size_t>(config.depth));
  for (Block& block : blocks_) {
    make({&block.input, &block.normal1, &block.attended, &block.middle, &block.normal2}, rows * width);
    make({&block.mean1, &block.inverse1, &block.mean2, &block.inverse2}, rows);
    make({&block.expanded, &block.gate, &block.active}, rows * 4 * width);
    make({&block.qkv}, rows * 3 * width);
    make({&block.attention}, heads * square);
  }
  make({&stream_, &normal_, &d_stream_, &d_rows_}, rows * width);
  make({&mean_, &inverse_}, rows);
  make({&logits_}, rows * kVocabulary);
  make({&d_wide_}, rows * 4 * width);
  make({&d_qkv_}, rows * 3 * width);
  make({&loss_}, sizeof(double) / sizeof(float));
  make({&tokens_}, (2 * rows + sizeof(float) - 1) / sizeof(float));
}

std::uint8_t* Model::inputs() const {
  return reinterpret_cast<std::uint8_t*>(tokens_.data());
}

std::uint8_t* Model::targets() const {
  return inputs() + rows_;
}

void Model::Forward(std::span<const float> parameters, const Batch& batch) {
  const int width = config_.width;
  ops_.Copy(inputs(), batch.inputs.data(), batch.inputs.size());
  ops_.Copy(targets(), batch.targets.data(), batch.targets.size());
  ops_.EmbeddingForward({rows_, config_.context, width}, inputs(), In(parameters, layout_.tokens),
                        In(parameters, layout_.positions), stream_.data());
  for (std::size_t i = 0; i < blocks_.size(); ++i) BlockForward(layout_.blocks[i], parameters, blocks_[i]);
  ops_.NormForward({rows_, width}, stream_.data(), In(parameters, layout_.norm_gain),
                   In(parameters, layout_.norm_bias), normal_.data(), mean_.data(), inverse_.data());
  ops_.LinearForward({rows_, width, kVocabulary}, normal_.data(), In(parameters, layout_.head), nullptr,
                     logits_.data());
  ops_.CrossEntropy({rows_, kVocabulary}, logits_.data(), targets(), reinterpret_cast<double*>(loss_.data()));
}

Result<double> Model::Loss() {
  double loss = 0;
  ops_.Copy(&loss, loss_.data(), sizeof(loss));
  if (Status done = ops_.Wait(); !done) return done.error();
  return loss;
}

void Model::BlockForward(const BlockLayout& layout, std::span<const float> parameters, Block& block) {
  const int width = config_.width;
  ops_.Copy(block.input.data(), stream_.data(), stream_.size() * sizeof(float));
  ops_.NormForward({rows_, width}, block.input.data(), In(parameters, layout.norm1_gain),
                   In(parameters, layout.norm1_bias), block.normal1.data(), block.mean1.data(),
                   block.inverse1.data());
  ops_.LinearForward({rows_, width, 3 * width}, block.normal1.data(), In(parameters, layout.qkv),
                     In(parameters, layout.qkv_bias), block.qkv.data());
  ops_.AttentionForward({batch_, config_.context, config_.heads, width}, block.qkv.data(),
                        block.attention.data(), block.attended.data());
  ops_.LinearForward({rows_, width, width}, block.attended.data(), In(parameters, layout.out),
                     In(parameters, layout.out_bias), block.middle.data());
  ops_.Add(block.middle.values(), block.input.values());

  ops_.NormForward({rows_, width}, block.middle.data(), In(parameters, layout.norm2_gain),
                   In(parameters, layout.norm2_bias), block.normal2.data(), block.mean2.data(),
                   block.inverse2.data());
  ops_.LinearForward({rows_, width, 4 * width}, block.normal2.data(), In(parameters, layout.expand),
                     In(parameters, layout.expand_bias), block.expanded.data());
  ops_.GeluForward(block.expanded.values(), block.active.values(), block.gate.values());
  ops_.LinearForward({rows_, 4 * width, width}, block.active.data(), In(parameters, layout.contract),
                     In(parameters, layout.contract_bias), stream_.data());
  ops_.Add(stream_.values(), block.middle.values());
}

void Model::Backward(std::span<const float> parameters, std::span<float> gradient,
                     const std::function<void(Slice)>& ready) {
  const int width = config_.width;
  ops_.Zero(gradient);
  ops_.CrossEntropyBackward({rows_, kVocabulary}, logits_.data(), targets());
  ops_.LinearBackward({rows_, width, kVocabulary}, normal_.data(), In(parameters, layout_.head),
                      logits_.data(), d_rows_.data(), In(gradient, layout_.head), nullptr);
  ops_.Zero(d_stream_.values());
  ops_.NormBackwardAdd({rows_, width}, stream_.data(), In(parameters, layout_.norm_gain), mean_.data(),
                       inverse_.data(), d_rows_.data(), d_stream_.data(), In(gradient, layout_.norm_gain),
                       In(gradient, layout_.norm_bias));
  std::size_t end = layout_.size;
  const auto ready_from = [&](const Tensor& first) {
    ready({first.offset, std::exchange(end, first.offset)});
  };
  ready_from(layout_.norm_gain);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    BlockBackward(layout_.blocks[i], parameters, blocks_[i], gradient);
    ready_from(layout_.blocks[i].norm1_gain);
  }
  ops_.EmbeddingBackward({rows_, config_.context, width}, inputs(), d_stream_.data(),
                         In(gradient, layout_.tokens), In(gradient, layout_.positions));
  ready_from(layout_.tokens);
}

// d_stream_ is the derivative by the block's result before, by its input after.
void Model::BlockBackward(const BlockLayout& layout, std::span<const float> parameters, const Block& block,
                          std::span<float> gradient) {
  const int width = config_.width;
  ops_.LinearBackward({rows_, 4 * width, width}, block.active.data(), In(parameters, layout.contract),
                      d_stream_.data(), d_wide_.data(), In(gradient, layout.contract),
                      In(gradient, layout.contract_bias));
  ops_.GeluBackward(block.expanded.values(), block.gate.values(), d_wide_.values());
  ops_.LinearBackward({rows_, width, 4 * width}, block.normal2.data(), In(parameters, layout.expand),
                      d_wide_.data(), d_rows_.data(), In(gradient, layout.expand),
                      In(gradient, layout.expand_bias));
  ops_.NormBackwardAdd({rows_, width}, block.middle.data(), In(parameters, layout.norm2_gain),
                       block.mean2.data(), block.inverse2.data(), d_rows_.data(), d_stream_.data(),
                       In(gradient, layout.norm2_gain), In(gradient, layout.norm2_bias));

  ops_.LinearBackward({rows_, width, width}, block.attended.data(), In(parameters, layout.out),
                      d_stream_.data(), d_rows_.data(), In(gradient, layout.out),
                      In(gradient, layout.out_bias));
  ops_.AttentionBackward({batch_, config_.context, config_.heads, width}, block.qkv.data(),
                         block.attention.data(), d_rows_.data(), d_qkv_.data());
  ops_.LinearBackward({rows_, width, 3 * width}, block.normal1.data(), In(parameters, layout.qkv),
                      d_qkv_.data(), d_rows_.data(), In(gradient, layout.qkv), In(gradient, layout.qkv_bias));
  ops_.NormBackwardAdd({rows_, width}, block.input.data(), In(parameters, layout.norm1_gain),
                       block.mean1.data(), block.inverse1.data(), d_rows_.data(), d_stream_.data(),
                       In(gradient, layout.norm1_gain), In(gradient, layout.norm1_bias));
}

}  // namespace muster::train
