// The CUDA kernels of kernels.cu, declared for it and for those who launch them: the arguments of a launch have these types.
// Each is right with any number of blocks and any of threads up to kMostThreads.
#pragma once

namespace muster::train {

inline constexpr unsigned int kMostThreads = 256;

}  // namespace muster::train

#ifdef __CUDACC__
#define MUSTER_KERNEL extern "C" __global__ void
#else
#define MUSTER_KERNEL extern "C" void
#endif

// to += values, and values /= divisor.
MUSTER_KERNEL muster_add(float* to, const float* values, long long count);
MUSTER_KERNEL muster_divide(float* values, float divisor, long long count);

MUSTER_KERNEL muster_embed(int rows, int context, int width, const unsigned char* inputs, const float* tokens,
                           const float* positions, float* out);
// Each weight's gradient is added up by one thread, over the rows in their order.
MUSTER_KERNEL muster_embed_tokens(int rows, int width, int vocabulary, const unsigned char* inputs,
                                  const float* d, float* dtokens);
MUSTER_KERNEL muster_embed_positions(int rows, int context, int width, const float* d, float* dpositions);

// Each row becomes the bias.
MUSTER_KERNEL muster_bias(int rows, int columns, const float* bias, float* y);

// Sums over rows in two steps, so that many threads have work and the order of additions is fixed: `partial` has a row of
// sums for each `chunk` rows, and muster_add_partials adds those to `sums`.
MUSTER_KERNEL muster_column_sums(int rows, int columns, int chunk, const float* d, float* partial);
MUSTER_KERNEL muster_norm_sums(int rows, int width, int chunk, const float* x, const float* mean,
                               const float* inverse, const float* dy, float* partial_gain,
                               float* partial_bias);
MUSTER_KERNEL muster_add_partials(int chunks, int columns, const float* partial, float* sums);

MUSTER_KERNEL muster_norm_forward(int rows, int width, const float* x, const float* gain, const float* bias,
                                  float* y, float* mean, float* inverse);
MUSTER_KERNEL muster_norm_backward(int rows, int width, const float* x, const float* gain, const float* mean,
                                   const float* inverse, const float* dy, float* dx);

MUSTER_KERNEL muster_gelu_forward(const float* x, float* y, float* gate, long long count);
MUSTER_KERNEL muster_gelu_backward(const float* x, const float* gate, float* d, long long count);

// Of rows of `context` scores, of which row i uses the first i % context + 1.
MUSTER_KERNEL muster_softmax(int rows, int context, float* scores);
MUSTER_KERNEL muster_softmax_backward(int rows, int context, const float* weights, float* d);

MUSTER_KERNEL muster_losses(int rows, int classes, const float* logits, const unsigned char* targets,
                            double* losses);
// One block.
MUSTER_KERNEL muster_mean(int count, const double* values, double* mean);
MUSTER_KERNEL muster_losses_backward(int rows, int classes, float* logits, const unsigned char* targets);

// `partial`: one for each block. Then, in one block, by what to scale values whose squares have these sums, and the scaling.
MUSTER_KERNEL muster_squares(const float* values, long long count, double* partial);
MUSTER_KERNEL muster_clip(int count, const double* partial, double limit, float* scale);
MUSTER_KERNEL muster_scale(float* values, const float* scale, long long count);

MUSTER_KERNEL muster_adam(float beta1, float beta2, float correct1, float correct2, float rate, float keep,
                          float epsilon, const float* gradient, float* parameters, float* first_moment,
                          float* second_moment, long long count);
