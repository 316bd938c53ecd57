#include "net/train/layers.h"

#include <algorithm>
#include <cmath>

#include "net/train/matrix.h"

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

void LinearForward(LinearShape shape, const float* x, const float* weights, const float* bias, float* y) {
  if (bias != nullptr) {
    for (int row = 0; row < shape.rows; ++row) std::copy_n(bias, shape.outputs, y + At(row, shape.outputs));
  }
  Multiply({x, shape.rows, shape.inputs, shape.inputs}, Form::kPlain,
           {weights, shape.inputs, shape.outputs, shape.outputs}, Form::kPlain,
           {y, shape.rows, shape.outputs, shape.outputs}, 1, bias != nullptr ? 1.0F : 0.0F);
}

void LinearBackward(LinearShape shape, const float* x, const float* weights, const float* dy, float* dx,
                    float* dweights, float* dbias) {
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

void NormForward(int rows, int width, const float* x, const float* gain, const float* bias, float* y,
                 float* mean, float* inverse) {
  for (int row = 0; row < rows; ++row) {
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

void NormBackwardAdd(int rows, int width, const float* x, const float* gain, const float* mean,
                     const float* inverse, const float* dy, float* dx, float* dgain, float* dbias) {
  for (int row = 0; row < rows; ++row) {
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

void GeluForward(std::span<const float> x, std::span<float> y, std::span<float> gate) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float u = kGeluScale * (x[i] + kGeluCubic * x[i] * x[i] * x[i]);
    gate[i] = 1 / (1 + std::exp(-2 * u));
    y[i] = x[i] * gate[i];
  }
}

void GeluBackward(std::span<const float> x, std::span<const float> gate, std::span<float> d) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float slope = 2 * kGeluScale * (1 + 3 * kGeluCubic * x[i] * x[i]);
    d[i] *= gate[i] + x[i] * gate[i] * (1 - gate[i]) * slope;
  }
}

void AttentionForward(AttentionShape shape, const float* qkv, float* weights, float* y) {
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

void AttentionBackward(AttentionShape shape, const float* qkv, const float* weights, const float* dy,
                       float* dqkv, float* scratch) {
  const View scores{scratch, shape.context, shape.context, shape.context};
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

double CrossEntropy(int rows, int classes, const float* logits, const std::uint8_t* targets) {
  double loss = 0;
  for (int row = 0; row < rows; ++row) {
    const float* scores = logits + At(row, classes);
    const float top = *std::max_element(scores, scores + classes);
    double sum = 0;
    for (int i = 0; i < classes; ++i) sum += std::exp(scores[i] - top);
    loss += std::log(sum) + top - scores[targets[row]];
  }
  return loss / rows;
}

void CrossEntropyBackward(int rows, int classes, float* logits, const std::uint8_t* targets) {
  const float scale = 1 / static_cast<float>(rows);
  for (int row = 0; row < rows; ++row) {
    float* scores = logits + At(row, classes);
    Softmax(scores, classes);
    scores[targets[row]] -= 1;
    for (int i = 0; i < classes; ++i) scores[i] *= scale;
  }
}

}  // namespace muster::train
