#include "train/host_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "train/matrix.h"

namespace muster::train {
namespace {

constexpr float kNormEpsilon = 1e-5F;
constexpr float kGeluScale = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;

std::ptrdiff_t At(int row, int width) {
  return static_cast<std::ptrdiff_t>(row) * width;
}

// Turns a row of scores into weights that sum to 1.
void Softmax(float* row, int count) {
  const float top = *std::max_element(row, row + count);
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    row[i] = std::exp(row[i] - top);
    sum += row[i];
  }
  const float scale = 1 / sum;
  for (int i = 0; i < count; ++i) row[i] *= scale;
}

// One head of one sequence, as views into qkv (or its gradient) and into the rows of all heads' results.
struct Head {
  Head(AttentionShape shape, int sequence, int head) : shape_(shape), depth_(shape.width / shape.heads) {
    qkv_ = At(sequence * shape.context, 3 * shape.width) + static_cast<std::ptrdiff_t>(head) * depth_;
    rows_ = At(sequence * shape.context, shape.width) + static_cast<std::ptrdiff_t>(head) * depth_;
    weights_ = At(sequence * shape.heads + head, shape.context) * shape.context;
  }

  template <typename T>
  [[nodiscard]] auto Queries(T* qkv) const {
    return Part(qkv, 0);
  }
  template <typename T>
  [[nodiscard]] auto Keys(T* qkv) const {
    return Part(qkv, 1);
  }
  template <typename T>
  [[nodiscard]] auto Values(T* qkv) const {
    return Part(qkv, 2);
  }
  [[nodiscard]] View Rows(float* y) const { return {y + rows_, shape_.context, depth_, shape_.width}; }
  [[nodiscard]] ConstView Rows(const float* y) const {
    return {y + rows_, shape_.context, depth_, shape_.width};
  }
  [[nodiscard]] View Weights(float* weights) const {
    return {weights + weights_, shape_.context, shape_.context, shape_.context};
  }
  [[nodiscard]] ConstView Weights(const float* weights) const {
    return {weights + weights_, shape_.context, shape_.context, shape_.context};
  }
  [[nodiscard]] float Scale() const { return 1 / std::sqrt(static_cast<float>(depth_)); }

 private:
  [[nodiscard]] View Part(float* qkv, int part) const {
    return {qkv + qkv_ + static_cast<std::ptrdiff_t>(part) * shape_.width, shape_.context, depth_,
            3 * shape_.width};
  }
  [[nodiscard]] ConstView Part(const float* qkv, int part) const {
    return {qkv + qkv_ + static_cast<std::ptrdiff_t>(part) * shape_.width, shape_.context, depth_,
            3 * shape_.width};
  }

  AttentionShape shape_;
  int depth_;
  std::ptrdiff_t qkv_;
  std::ptrdiff_t rows_;
  std::ptrdiff_t weights_;
};

template <typename F>
void ForEachHead(AttentionShape shape, F&& f) {
  for (int sequence = 0; sequence < shape.batch; ++sequence) {
    for (int head = 0; head < shape.heads; ++head) f(Head(shape, sequence, head));
  }
}

}  // namespace

float* HostOps::Allocate(std::size_t floats) {
  return new float[floats]();
}

void HostOps::Free(float* data) {
  delete[] data;
}

void HostOps::Zero(std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0F);
}

void HostOps::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

void HostOps::Add(std::span<float> to, std::span<const float> values) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

void HostOps::Divide(std::span<float> values, float divisor) {
  for (float& value : values) value /= divisor;
}

void HostOps::EmbeddingForward(EmbeddingShape shape, const std::uint8_t* inputs, const float* tokens,
                               const float* positions, float* out) {
  for (int row = 0; row < shape.rows; ++row) {
    const float* token = tokens + At(inputs[row], shape.width);
    const float* position = positions + At(row % shape.context, shape.width);
    float* sum = out + At(row, shape.width);
    for (int i = 0; i < shape.width; ++i) sum[i] = token[i] + position[i];
  }
}

void HostOps::EmbeddingBackward(EmbeddingShape shape, const std::uint8_t* inputs, const float* d,
                                float* dtokens, float* dpositions) {
  for (int row = 0; row < shape.rows; ++row) {
    const float* from = d + At(row, shape.width);
    float* token = dtokens + At(inputs[row], shape.width);
    float* position = dpositions + At(row % shape.context, shape.width);
    for (int i = 0; i < shape.width; ++i) {
      token[i] += from[i];
      position[i] += from[i];
    }
  }
}

void HostOps::LinearForward(LinearShape shape, const float* x, const float* weights, const float* bias,
                            float* y) {
  if (bias != nullptr) {
    for (int row = 0; row < shape.rows; ++row) std::copy_n(bias, shape.outputs, y + At(row, shape.outputs));
  }
  Multiply({x, shape.rows, shape.inputs, shape.inputs}, Form::kPlain,
           {weights, shape.inputs, shape.outputs, shape.outputs}, Form::kPlain,
           {y, shape.rows, shape.outputs, shape.outputs}, 1, bias != nullptr ? 1.0F : 0.0F);
}

void HostOps::LinearBackward(LinearShape shape, const float* x, const float* weights, const float* dy,
                             float* dx, float* dweights, float* dbias) {
  const ConstView output{dy, shape.rows, shape.outputs, shape.outputs};
  Multiply(output, Form::kPlain, {weights, shape.inputs, shape.outputs, shape.outputs}, Form::kTransposed,
           {dx, shape.rows, shape.inputs, shape.inputs}, 1, 0);
  Multiply({x, shape.rows, shape.inputs, shape.inputs}, Form::kTransposed, output, Form::kPlain,
           {dweights, shape.inputs, shape.outputs, shape.outputs}, 1, 1);
  if (dbias == nullptr) return;
  for (int row = 0; row < shape.rows; ++row) {
    const float* from = dy + At(row, shape.outputs);
    for (int i = 0; i < shape.outputs; ++i) dbias[i] += from[i];
  }
}

void HostOps::NormForward(NormShape shape, const float* x, const float* gain, const float* bias, float* y,
                          float* mean, float* inverse) {
  const int width = shape.width;
  for (int row = 0; row < shape.rows; ++row) {
    const float* in = x + At(row, width);
    float* out = y + At(row, width);
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += in[i];
    const float m = sum / static_cast<float>(width);
    float squares = 0;
    for (int i = 0; i < width; ++i) squares += (in[i] - m) * (in[i] - m);
    const float r = 1 / std::sqrt(squares / static_cast<float>(width) + kNormEpsilon);
    for (int i = 0; i < width; ++i) out[i] = (in[i] - m) * r * gain[i] + bias[i];
    mean[row] = m;
    inverse[row] = r;
  }
}

void HostOps::NormBackwardAdd(NormShape shape, const float* x, const float* gain, const float* mean,
                              const float* inverse, const float* dy, float* dx, float* dgain, float* dbias) {
  const int width = shape.width;
  for (int row = 0; row < shape.rows; ++row) {
    const float* in = x + At(row, width);
    const float* d = dy + At(row, width);
    float* out = dx + At(row, width);
    const float m = mean[row];
    const float r = inverse[row];
    float sum = 0;
    float dot = 0;
    for (int i = 0; i < width; ++i) {
      const float normal = (in[i] - m) * r;
      sum += gain[i] * d[i];
      dot += gain[i] * d[i] * normal;
      dgain[i] += d[i] * normal;
      dbias[i] += d[i];
    }
    const float mean_sum = sum / static_cast<float>(width);
    const float mean_dot = dot / static_cast<float>(width);
    for (int i = 0; i < width; ++i) {
      const float normal = (in[i] - m) * r;
      out[i] += r * (gain[i] * d[i] - mean_sum - normal * mean_dot);
    }
  }
}

void HostOps::GeluForward(std::span<const float> x, std::span<float> y, std::span<float> gate) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float u = kGeluScale * (x[i] + kGeluCubic * x[i] * x[i] * x[i]);
    gate[i] = 1 / (1 + std::exp(-2 * u));
    y[i] = x[i] * gate[i];
  }
}

void HostOps::GeluBackward(std::span<const float> x, std::span<const float> gate, std::span<float> d) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float slope = 2 * kGeluScale * (1 + 3 * kGeluCubic * x[i] * x[i]);
    d[i] *= gate[i] + x[i] * gate[i] * (1 - gate[i]) * slope;
  }
}

void HostOps::AttentionForward(AttentionShape shape, const float* qkv, float* weights, float* y) {
  ForEachHead(shape, [&](const Head& head) {
    const View attend = head.Weights(weights);
    Multiply(head.Queries(qkv), Form::kPlain, head.Keys(qkv), Form::kTransposed, attend, head.Scale(), 0);
    for (int row = 0; row < shape.context; ++row) {
      float* scores = attend.data + At(row, shape.context);
      Softmax(scores, row + 1);  // a position sees itself and what came before
      std::fill(scores + row + 1, scores + shape.context, 0.0F);
    }
    Multiply(attend, Form::kPlain, head.Values(qkv), Form::kPlain, head.Rows(y), 1, 0);
  });
}

void HostOps::AttentionBackward(AttentionShape shape, const float* qkv, const float* weights, const float* dy,
                                float* dqkv) {
  scores_.resize(static_cast<std::size_t>(At(shape.context, shape.context)));
  const View scores{scores_.data(), shape.context, shape.context, shape.context};
  ForEachHead(shape, [&](const Head& head) {
    const ConstView attend = head.Weights(weights);
    Multiply(attend, Form::kTransposed, head.Rows(dy), Form::kPlain, head.Values(dqkv), 1, 0);
    Multiply(head.Rows(dy), Form::kPlain, head.Values(qkv), Form::kTransposed, scores, 1, 0);
    for (int row = 0; row < shape.context; ++row) {
      const float* weight = attend.data + At(row, shape.context);
      float* d = scores.data + At(row, shape.context);
      float dot = 0;
      for (int i = 0; i <= row; ++i) dot += weight[i] * d[i];
      for (int i = 0; i < shape.context; ++i)
        d[i] = weight[i] * (d[i] - dot);  // 0 beyond `row`: the weight is 0
    }
    Multiply(scores, Form::kPlain, head.Keys(qkv), Form::kPlain, head.Queries(dqkv), head.Scale(), 0);
    Multiply(scores, Form::kTransposed, head.Queries(qkv), Form::kPlain, head.Keys(dqkv), head.Scale(), 0);
  });
}

void HostOps::CrossEntropy(ScoresShape shape, const float* logits, const std::uint8_t* targets,
                           double* loss) {
  double sum_of_all = 0;
  for (int row = 0; row < shape.rows; ++row) {
    const float* scores = logits + At(row, shape.classes);
    const float top = *std::max_element(scores, scores + shape.classes);
    double sum = 0;
    for (int i = 0; i < shape.classes; ++i) sum += std::exp(scores[i] - top);
    sum_of_all += std::log(sum) + top - scores[targets[row]];
  }
  *loss = sum_of_all / shape.rows;
}

void HostOps::CrossEntropyBackward(ScoresShape shape, float* logits, const std::uint8_t* targets) {
  const float scale = 1 / static_cast<float>(shape.rows);
  for (int row = 0; row < shape.rows; ++row) {
    float* scores = logits + At(row, shape.classes);
    Softmax(scores, shape.classes);
    scores[targets[row]] -= 1;
    for (int i = 0; i < shape.classes; ++i) scores[i] *= scale;
  }
}

void HostOps::ClipNorm(std::span<float> gradient, double limit) {
  // Eight sums side by side, added in a fixed order: the compiler may use vector registers and the bits stay
  // the same.
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= gradient.size(); i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane) {
      const double value = gradient[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < gradient.size(); ++i) total += static_cast<double>(gradient[i]) * gradient[i];
  const double norm = std::sqrt(total);
  if (norm > limit) {
    const auto scale = static_cast<float>(limit / norm);
    for (float& value : gradient) value *= scale;
  }
}

void HostOps::Adam(const AdamUpdate& update, std::span<const float> gradient, std::span<float> parameters,
                   std::span<float> first_moment, std::span<float> second_moment) {
  const float fresh1 = 1 - update.beta1;
  const float fresh2 = 1 - update.beta2;
  const float* g = gradient.data();
  float* p = parameters.data();
  float* m = first_moment.data();
  float* v = second_moment.data();
  const AdamUpdate u = update;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    m[i] = u.beta1 * m[i] + fresh1 * g[i];
    v[i] = u.beta2 * v[i] + fresh2 * g[i] * g[i];
    p[i] = p[i] * u.keep - u.rate * (m[i] * u.correct1) / (std::sqrt(v[i] * u.correct2) + u.epsilon);
  }
}

}  // namespace muster::train
