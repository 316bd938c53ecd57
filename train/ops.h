// What the decoder and its optimizer are computed with: buffers of one kind of memory, and the pieces that work on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/result.h"
#include "net/collectives/collectives.h"

namespace muster::train {

// y = x w + bias, for `rows` rows of `inputs` values to `outputs` values.
struct LinearShape {
  int rows;
  int inputs;
  int outputs;
};

// `rows` rows of `width` values, each normalised by itself.
struct NormShape {
  int rows;
  int width;
};

// Causal attention of `heads` heads over `batch` sequences of `context` rows of `width` values.
struct AttentionShape {
  int batch;
  int context;
  int heads;
  int width;
};

// Each row is the sum of its token's and its position's; a row's position is its number in its sequence of `context`.
struct EmbeddingShape {
  int rows;
  int context;
  int width;
};

// `rows` rows of a score for each of `classes`.
struct ScoresShape {
  int rows;
  int classes;
};

// One update of AdamW, for weights that are treated alike.
struct AdamUpdate {
  float beta1;
  float beta2;
  float correct1;  // 1 / (1 - beta1^step), and so for beta2
  float correct2;
  float rate;
  float keep;  // of the weight, before the update: 1 less the decay
  float epsilon;
};

// Memory is of the kind memory(), but where it is said to be the host's: nobody but an Ops reads or writes it. Matrices are
// row-major float32. A piece may return before it is done; the next one is done behind it. After an error nothing
// is done any more, and Wait gives the first one.
//
// Of the thread that made it, where nothing else is said.
class Ops {
 public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops();

  [[nodiscard]] virtual MemoryKind memory() const = 0;
  // The CUstream that has all the work, for kCuda; else null.
  [[nodiscard]] virtual void* stream() const = 0;

  // Until all is done that was begun.
  [[nodiscard]] virtual Status Wait() = 0;
  // Tells whether all is done that had been begun when this was called. Any thread may ask it, while this object lives.
  // Empty: it is.
  [[nodiscard]] virtual std::function<Result<bool>()> Mark() = 0;

  // What was begun may never end, and to free anything would wait for it: from now on all is left to the process's end.
  virtual void Abandon() = 0;

  // So many zeros; null when there is no room. For Buffer, which frees it.
  [[nodiscard]] virtual float* Allocate(std::size_t floats) = 0;
  virtual void Free(float* data) = 0;

  virtual void Zero(std::span<float> values) = 0;
  // Either side is of this memory or the host's. The host's is left alone until Wait.
  virtual void Copy(void* to, const void* from, std::size_t bytes) = 0;

  // to += values, of the same length; and values / divisor, in place.
  virtual void Add(std::span<float> to, std::span<const float> values) = 0;
  virtual void Divide(std::span<float> values, float divisor) = 0;

  // out: a row of `width` values for each token.
  virtual void EmbeddingForward(EmbeddingShape shape, const std::uint8_t* inputs, const float* tokens,
                                const float* positions, float* out) = 0;
  // Adds to both gradients.
  virtual void EmbeddingBackward(EmbeddingShape shape, const std::uint8_t* inputs, const float* d,
                                 float* dtokens, float* dpositions) = 0;

  // `bias` may be null.
  virtual void LinearForward(LinearShape shape, const float* x, const float* weights, const float* bias,
                             float* y) = 0;
  // dx is set; dweights and dbias are added to. `dbias` may be null.
  virtual void LinearBackward(LinearShape shape, const float* x, const float* weights, const float* dy,
                              float* dx, float* dweights, float* dbias) = 0;

  // y = gain * (x - mean) / deviation + bias, over each row. `mean` and `inverse` (of the deviation) are kept for the
  // derivative, one a row.
  virtual void NormForward(NormShape shape, const float* x, const float* gain, const float* bias, float* y,
                           float* mean, float* inverse) = 0;
  // dx, dgain and dbias are added to: a norm reads the residual stream, which goes on beside it.
  virtual void NormBackwardAdd(NormShape shape, const float* x, const float* gain, const float* mean,
                               const float* inverse, const float* dy, float* dx, float* dgain,
                               float* dbias) = 0;

  // y = x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): GELU in its tanh form. `gate` keeps the sigmoid.
  virtual void GeluForward(std::span<const float> x, std::span<float> y, std::span<float> gate) = 0;
  // In place: d is the derivative by y, and then by x.
  virtual void GeluBackward(std::span<const float> x, std::span<const float> gate, std::span<float> d) = 0;

  // qkv: 3 width columns, queries, keys, values. weights: batch x heads x context x context, kept for the derivative.
  virtual void AttentionForward(AttentionShape shape, const float* qkv, float* weights, float* y) = 0;
  // dqkv is set.
  virtual void AttentionBackward(AttentionShape shape, const float* qkv, const float* weights,
                                 const float* dy, float* dqkv) = 0;

  // loss: the mean over all rows of -log softmax(logits)[target], in nats. targets: one a row.
  virtual void CrossEntropy(ScoresShape shape, const float* logits, const std::uint8_t* targets,
                            double* loss) = 0;
  // In place: logits become the derivative of that mean by them.
  virtual void CrossEntropyBackward(ScoresShape shape, float* logits, const std::uint8_t* targets) = 0;

  // Scales the gradient to this Euclidean norm when it is above it.
  virtual void ClipNorm(std::span<float> gradient, double limit) = 0;
  // In place, all four of the same length. Each element depends on nothing but its own four values.
  virtual void Adam(const AdamUpdate& update, std::span<const float> gradient, std::span<float> parameters,
                    std::span<float> first_moment, std::span<float> second_moment) = 0;
};

// Floats in an Ops' memory, which outlives it. Zeros at the start.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Ops& ops, std::size_t floats) : ops_(&ops), data_(ops.Allocate(floats)), size_(floats) {}
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) ops_->Free(data_);
  }

  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<float> values() const { return {data_, size_}; }

 private:
  void Swap(Buffer& other) {
    std::swap(ops_, other.ops_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  Ops* ops_ = nullptr;
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace muster::train
