// The pieces of the decoder and its optimizer that cuBLAS does not have, for CUDA devices. What each computes is said where
// Ops declares it; host_ops.cc has the same for the host. Nothing is added up in an order that chance decides: a run that is
// repeated on the same device gives the same bits.
#include "train/kernels.h"

// With a name: without one nvcc would name what is in it after the directory that it runs in, and no two builds be alike.
namespace muster::train::kernels {

constexpr float kNormEpsilon = 1e-5F;
constexpr float kGeluScale = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;

// This thread's place among all of the grid, and how many there are.
__device__ long long First() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ long long Threads() {
  return static_cast<long long>(gridDim.x) * blockDim.x;
}
// The same within the block, and the blocks themselves.
__device__ int Lane() {
  return static_cast<int>(threadIdx.x);
}
__device__ int Lanes() {
  return static_cast<int>(blockDim.x);
}
__device__ int FirstRow() {
  return static_cast<int>(blockIdx.x);
}
__device__ int Blocks() {
  return static_cast<int>(gridDim.x);
}

__device__ long long At(int row, int width) {
  return static_cast<long long>(row) * width;
}

// The sum, and the maximum, of a value of each thread of the block. All of its threads call it.
template <typename T>
__device__ T BlockSum(T value) {
  __shared__ T values[muster::train::kMostThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned int i = 0; i < blockDim.x; ++i) sum += values[i];
  __syncthreads();
  return sum;
}
__device__ float BlockMax(float value) {
  __shared__ float values[muster::train::kMostThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  float most = values[0];
  for (unsigned int i = 1; i < blockDim.x; ++i) most = fmaxf(most, values[i]);
  __syncthreads();
  return most;
}

// The largest of a row's first values. Threads beyond them have the first one, which changes nothing.
__device__ float RowMax(const float* row, int count) {
  float most = row[0];
  for (int i = Lane(); i < count; i += Lanes()) most = fmaxf(most, row[i]);
  return BlockMax(most);
}

// Turns a row's first values into weights that sum to 1.
__device__ void RowSoftmax(float* row, int count) {
  const float top = RowMax(row, count);
  float sum = 0;
  for (int i = Lane(); i < count; i += Lanes()) {
    row[i] = expf(row[i] - top);
    sum += row[i];
  }
  const float scale = 1 / BlockSum(sum);
  for (int i = Lane(); i < count; i += Lanes()) row[i] *= scale;
}

}  // namespace muster::train::kernels

using namespace muster::train::kernels;

MUSTER_KERNEL muster_add(float* to, const float* values, long long count) {
  for (long long i = First(); i < count; i += Threads()) to[i] += values[i];
}

MUSTER_KERNEL muster_divide(float* values, float divisor, long long count) {
  for (long long i = First(); i < count; i += Threads()) values[i] /= divisor;
}

MUSTER_KERNEL muster_embed(int rows, int context, int width, const unsigned char* inputs, const float* tokens,
                           const float* positions, float* out) {
  const long long count = At(rows, width);
  for (long long i = First(); i < count; i += Threads()) {
    const int row = static_cast<int>(i / width);
    const int column = static_cast<int>(i % width);
    out[i] = tokens[At(inputs[row], width) + column] + positions[At(row % context, width) + column];
  }
}

MUSTER_KERNEL muster_embed_tokens(int rows, int width, int vocabulary, const unsigned char* inputs,
                                  const float* d, float* dtokens) {
  const long long count = At(vocabulary, width);
  for (long long i = First(); i < count; i += Threads()) {
    const int token = static_cast<int>(i / width);
    const int column = static_cast<int>(i % width);
    float sum = dtokens[i];
    for (int row = 0; row < rows; ++row) {
      if (inputs[row] == token) sum += d[At(row, width) + column];
    }
    dtokens[i] = sum;
  }
}

MUSTER_KERNEL muster_embed_positions(int rows, int context, int width, const float* d, float* dpositions) {
  const long long count = At(context, width);
  for (long long i = First(); i < count; i += Threads()) {
    const int column = static_cast<int>(i % width);
    float sum = dpositions[i];
    for (int row = static_cast<int>(i / width); row < rows; row += context) sum += d[At(row, width) + column];
    dpositions[i] = sum;
  }
}

MUSTER_KERNEL muster_bias(int rows, int columns, const float* bias, float* y) {
  const long long count = At(rows, columns);
  for (long long i = First(); i < count; i += Threads()) y[i] = bias[i % columns];
}

MUSTER_KERNEL muster_column_sums(int rows, int columns, int chunk, const float* d, float* partial) {
  const long long count = At((rows + chunk - 1) / chunk, columns);
  for (long long i = First(); i < count; i += Threads()) {
    const int begin = static_cast<int>(i / columns) * chunk;
    const int end = begin + chunk < rows ? begin + chunk : rows;
    const int column = static_cast<int>(i % columns);
    float sum = 0;
    for (int row = begin; row < end; ++row) sum += d[At(row, columns) + column];
    partial[i] = sum;
  }
}

MUSTER_KERNEL muster_norm_sums(int rows, int width, int chunk, const float* x, const float* mean,
                               const float* inverse, const float* dy, float* partial_gain,
                               float* partial_bias) {
  const long long count = At((rows + chunk - 1) / chunk, width);
  for (long long i = First(); i < count; i += Threads()) {
    const int begin = static_cast<int>(i / width) * chunk;
    const int end = begin + chunk < rows ? begin + chunk : rows;
    const int column = static_cast<int>(i % width);
    float gain = 0;
    float bias = 0;
    for (int row = begin; row < end; ++row) {
      const float d = dy[At(row, width) + column];
      gain += d * ((x[At(row, width) + column] - mean[row]) * inverse[row]);
      bias += d;
    }
    partial_gain[i] = gain;
    partial_bias[i] = bias;
  }
}

MUSTER_KERNEL muster_add_partials(int chunks, int columns, const float* partial, float* sums) {
  for (long long i = First(); i < columns; i += Threads()) {
    float sum = sums[i];
    for (int chunk = 0; chunk < chunks; ++chunk) sum += partial[At(chunk, columns) + i];
    sums[i] = sum;
  }
}

MUSTER_KERNEL muster_norm_forward(int rows, int width, const float* x, const float* gain, const float* bias,
                                  float* y, float* mean, float* inverse) {
  for (int row = FirstRow(); row < rows; row += Blocks()) {
    const float* in = x + At(row, width);
    float* out = y + At(row, width);
    float sum = 0;
    for (int i = Lane(); i < width; i += Lanes()) sum += in[i];
    const float m = BlockSum(sum) / static_cast<float>(width);
    float squares = 0;
    for (int i = Lane(); i < width; i += Lanes()) squares += (in[i] - m) * (in[i] - m);
    const float r = 1 / sqrtf(BlockSum(squares) / static_cast<float>(width) + kNormEpsilon);
    for (int i = Lane(); i < width; i += Lanes()) out[i] = (in[i] - m) * r * gain[i] + bias[i];
    if (Lane() == 0) {
      mean[row] = m;
      inverse[row] = r;
    }
  }
}

MUSTER_KERNEL muster_norm_backward(int rows, int width, const float* x, const float* gain, const float* mean,
                                   const float* inverse, const float* dy, float* dx) {
  for (int row = FirstRow(); row < rows; row += Blocks()) {
    const float* in = x + At(row, width);
    const float* d = dy + At(row, width);
    float* out = dx + At(row, width);
    const float m = mean[row];
    const float r = inverse[row];
    float sum = 0;
    float dot = 0;
    for (int i = Lane(); i < width; i += Lanes()) {
      sum += gain[i] * d[i];
      dot += gain[i] * d[i] * ((in[i] - m) * r);
    }
    const float mean_sum = BlockSum(sum) / static_cast<float>(width);
    const float mean_dot = BlockSum(dot) / static_cast<float>(width);
    for (int i = Lane(); i < width; i += Lanes()) {
      const float normal = (in[i] - m) * r;
      out[i] += r * (gain[i] * d[i] - mean_sum - normal * mean_dot);
    }
  }
}

MUSTER_KERNEL muster_gelu_forward(const float* x, float* y, float* gate, long long count) {
  for (long long i = First(); i < count; i += Threads()) {
    const float u = kGeluScale * (x[i] + kGeluCubic * x[i] * x[i] * x[i]);
    gate[i] = 1 / (1 + expf(-2 * u));
    y[i] = x[i] * gate[i];
  }
}

MUSTER_KERNEL muster_gelu_backward(const float* x, const float* gate, float* d, long long count) {
  for (long long i = First(); i < count; i += Threads()) {
    const float slope = 2 * kGeluScale * (1 + 3 * kGeluCubic * x[i] * x[i]);
    d[i] *= gate[i] + x[i] * gate[i] * (1 - gate[i]) * slope;
  }
}

MUSTER_KERNEL muster_softmax(int rows, int context, float* scores) {
  for (int row = FirstRow(); row < rows; row += Blocks()) {
    float* const of_row = scores + At(row, context);
    const int count = row % context + 1;
    RowSoftmax(of_row, count);
    for (int i = count + Lane(); i < context; i += Lanes()) of_row[i] = 0;
  }
}

MUSTER_KERNEL muster_softmax_backward(int rows, int context, const float* weights, float* d) {
  for (int row = FirstRow(); row < rows; row += Blocks()) {
    const float* const weight = weights + At(row, context);
    float* const of_row = d + At(row, context);
    const int count = row % context + 1;
    float sum = 0;
    for (int i = Lane(); i < count; i += Lanes()) sum += weight[i] * of_row[i];
    const float dot = BlockSum(sum);
    for (int i = Lane(); i < context; i += Lanes()) of_row[i] = i < count ? weight[i] * (of_row[i] - dot) : 0;
  }
}

MUSTER_KERNEL muster_losses(int rows, int classes, const float* logits, const unsigned char* targets,
                            double* losses) {
  for (int row = FirstRow(); row < rows; row += Blocks()) {
    const float* const scores = logits + At(row, classes);
    const float top = RowMax(scores, classes);
    double sum = 0;
    for (int i = Lane(); i < classes; i += Lanes()) sum += expf(scores[i] - top);
    const double all = BlockSum(sum);
    if (Lane() == 0) losses[row] = log(all) + top - scores[targets[row]];
  }
}

MUSTER_KERNEL muster_mean(int count, const double* values, double* mean) {
  double sum = 0;
  for (int i = Lane(); i < count; i += Lanes()) sum += values[i];
  const double all = BlockSum(sum);
  if (Lane() == 0) *mean = all / count;
}

MUSTER_KERNEL muster_losses_backward(int rows, int classes, float* logits, const unsigned char* targets) {
  const float scale = 1 / static_cast<float>(rows);
  for (int row = FirstRow(); row < rows; row += Blocks()) {
    float* const scores = logits + At(row, classes);
    RowSoftmax(scores, classes);
    // A value is this thread's alone since RowSoftmax has given it to its lane.
    for (int i = Lane(); i < classes; i += Lanes())
      scores[i] = (scores[i] - (i == targets[row] ? 1.0F : 0.0F)) * scale;
  }
}

MUSTER_KERNEL muster_squares(const float* values, long long count, double* partial) {
  double sum = 0;
  for (long long i = First(); i < count; i += Threads()) {
    const double value = values[i];
    sum += value * value;
  }
  const double all = BlockSum(sum);
  if (Lane() == 0) partial[blockIdx.x] = all;
}

MUSTER_KERNEL muster_clip(int count, const double* partial, double limit, float* scale) {
  double sum = 0;
  for (int i = Lane(); i < count; i += Lanes()) sum += partial[i];
  const double norm = sqrt(BlockSum(sum));
  if (Lane() == 0) *scale = norm > limit ? static_cast<float>(limit / norm) : 1.0F;
}

MUSTER_KERNEL muster_scale(float* values, const float* scale, long long count) {
  const float by = *scale;
  for (long long i = First(); i < count; i += Threads()) values[i] *= by;
}

MUSTER_KERNEL muster_adam(float beta1, float beta2, float correct1, float correct2, float rate, float keep,
                          float epsilon, const float* gradient, float* parameters, float* first_moment,
                          float* second_moment, long long count) {
  const float fresh1 = 1 - beta1;
  const float fresh2 = 1 - beta2;
  for (long long i = First(); i < count; i += Threads()) {
    const float g = gradient[i];
    const float m = beta1 * first_moment[i] + fresh1 * g;
    const float v = beta2 * second_moment[i] + fresh2 * g * g;
    first_moment[i] = m;
    second_moment[i] = v;
    parameters[i] = parameters[i] * keep - rate * (m * correct1) / (sqrtf(v * correct2) + epsilon);
  }
}
