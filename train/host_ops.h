// The pieces of the decoder and its optimizer in host memory, by OpenBLAS on the calling thread.
#pragma once

#include <vector>

#include "train/ops.h"

namespace muster::train {

// Done when a call returns. The same bits for the same values, on every processor with the same OpenBLAS kernels.
class HostOps final : public Ops {
 public:
  [[nodiscard]] MemoryKind memory() const override { return MemoryKind::kHost; }
  [[nodiscard]] void* stream() const override { return nullptr; }
  [[nodiscard]] Status Wait() override { return {}; }
  [[nodiscard]] std::function<Result<bool>()> Mark() override { return {}; }
  void Abandon() override {}

  [[nodiscard]] float* Allocate(std::size_t floats) override;
  void Free(float* data) override;
  void Zero(std::span<float> values) override;
  void Copy(void* to, const void* from, std::size_t bytes) override;
  void Add(std::span<float> to, std::span<const float> values) override;
  void Divide(std::span<float> values, float divisor) override;

  void EmbeddingForward(EmbeddingShape shape, const std::uint8_t* inputs, const float* tokens,
                        const float* positions, float* out) override;
  void EmbeddingBackward(EmbeddingShape shape, const std::uint8_t* inputs, const float* d, float* dtokens,
                         float* dpositions) override;
  void LinearForward(LinearShape shape, const float* x, const float* weights, const float* bias,
                     float* y) override;
  void LinearBackward(LinearShape shape, const float* x, const float* weights, const float* dy, float* dx,
                      float* dweights, float* dbias) override;
  void NormForward(NormShape shape, const float* x, const float* gain, const float* bias, float* y,
                   float* mean, float* inverse) override;
  void NormBackwardAdd(NormShape shape, const float* x, const float* gain, const float* mean,
                       const float* inverse, const float* dy, float* dx, float* dgain, float* dbias) override;
  void GeluForward(std::span<const float> x, std::span<float> y, std::span<float> gate) override;
  void GeluBackward(std::span<const float> x, std::span<const float> gate, std::span<float> d) override;
  void AttentionForward(AttentionShape shape, const float* qkv, float* weights, float* y) override;
  void AttentionBackward(AttentionShape shape, const float* qkv, const float* weights, const float* dy,
                         float* dqkv) override;
  void CrossEntropy(ScoresShape shape, const float* logits, const std::uint8_t* targets,
                    double* loss) override;
  void CrossEntropyBackward(ScoresShape shape, float* logits, const std::uint8_t* targets) override;
  void ClipNorm(std::span<float> gradient, double limit) override;
  void Adam(const AdamUpdate& update, std::span<const float> gradient, std::span<float> parameters,
            std::span<float> first_moment, std::span<float> second_moment) override;

 private:
  std::vector<float> scores_;  // context x context
};

}  // namespace muster::train
