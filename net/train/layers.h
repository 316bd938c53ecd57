// The pieces of the decoder, each with its derivative. Matrices are row-major, a row for each position. A
// Backward function adds to the gradients of weights and, where its name says so, to those of its inputs;
// else it sets them.
#pragma once

#include <cstdint>
#include <span>

namespace muster::train {

// y = x w + bias, for `rows` rows of `inputs` values to `outputs` values.
struct LinearShape {
  int rows;
  int inputs;
  int outputs;
};
void LinearForward(LinearShape shape, const float* x, const float* weights, const float* bias, float* y);
// dx is set; dw and dbias are added to. `bias` may be absent in both: then null.
void LinearBackward(LinearShape shape, const float* x, const float* weights, const float* dy, float* dx,
                    float* dweights, float* dbias);

// y = gain * (x - mean) / deviation + bias, over each row. `mean` and `inverse` (of the deviation) are kept
// for the derivative, one a row.
void NormForward(int rows, int width, const float* x, const float* gain, const float* bias, float* y,
                 float* mean, float* inverse);
// dx is added to: a norm reads the residual stream, which goes on beside it.
void NormBackwardAdd(int rows, int width, const float* x, const float* gain, const float* mean,
                     const float* inverse, const float* dy, float* dx, float* dgain, float* dbias);

// y = x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): GELU in its tanh form. `gate` keeps the sigmoid.
void GeluForward(std::span<const float> x, std::span<float> y, std::span<float> gate);
// In place: d is the derivative by y, and then by x.
void GeluBackward(std::span<const float> x, std::span<const float> gate, std::span<float> d);

// Causal attention of `heads` heads over `batch` sequences of `context` rows.
struct AttentionShape {
  int batch;
  int context;
  int heads;
  int width;
};
// qkv: 3 width columns, queries, keys, values. weights: batch x heads x context x context, kept for the
// derivative.
void AttentionForward(AttentionShape shape, const float* qkv, float* weights, float* y);
// dqkv is set. `scratch`: context x context.
void AttentionBackward(AttentionShape shape, const float* qkv, const float* weights, const float* dy,
                       float* dqkv, float* scratch);

// The mean over all rows of -log softmax(logits)[target], in nats.
[[nodiscard]] double CrossEntropy(int rows, int classes, const float* logits, const std::uint8_t* targets);
// In place: logits become the derivative of that mean by them.
void CrossEntropyBackward(int rows, int classes, float* logits, const std::uint8_t* targets);

}  // namespace muster::train
