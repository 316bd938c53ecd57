// A stand-in for cuBLAS, on the stand-in for NVIDIA's driver: OpenBLAS, in the order of the handle's stream. Names and values
// are those of cuBLAS's cublas_api.h.
#include <cblas.h>

#include "tests/unit/net/stand_in_gpu.h"

namespace muster::stand_in {
namespace {

constexpr int kNotInitialized = 1;
constexpr int kBadArgument = 7;

struct Context {
  void* stream = nullptr;
};

// A matrix of a product: so many floats of device memory, for each of `count` that lie `step` floats apart.
template <typename T>
T* Matrices(T* data, int rows, int columns, int stride, long long step, int count) {
  if (rows < 1 || columns < 1 || stride < rows) return nullptr;
  const long long floats = step * (count - 1) + static_cast<long long>(stride) * (columns - 1) + rows;
  return reinterpret_cast<T*>(Behind(data, static_cast<std::size_t>(floats) * sizeof(float)));
}

}  // namespace

#define STAND_IN extern "C" __attribute__((visibility("default")))

STAND_IN int cublasCreate_v2(void** out) {
  *out = new Context;
  return 0;
}
STAND_IN int cublasDestroy_v2(void* handle) {
  delete static_cast<Context*>(handle);
  return 0;
}
STAND_IN int cublasSetStream_v2(void* handle, void* stream) {
  static_cast<Context*>(handle)->stream = stream;
  return 0;
}
STAND_IN const char* cublasGetStatusString(int) {
  return "an error of the stand-in's";
}
STAND_IN int cublasSgemmStridedBatched(void* handle, int left_form, int right_form, int rows, int columns,
                                       int inner, const float* scale, const float* left, int left_stride,
                                       long long left_step, const float* right, int right_stride,
                                       long long right_step, const float* keep, float* out, int out_stride,
                                       long long out_step, int count) {
  void* const stream = static_cast<Context*>(handle)->stream;
  if (stream == nullptr) return kNotInitialized;
  const float* const a = left_form == 0 ? Matrices(left, rows, inner, left_stride, left_step, count)
                                        : Matrices(left, inner, rows, left_stride, left_step, count);
  const float* const b = right_form == 0 ? Matrices(right, inner, columns, right_stride, right_step, count)
                                         : Matrices(right, columns, inner, right_stride, right_step, count);
  float* const c = Matrices(out, rows, columns, out_stride, out_step, count);
  if (a == nullptr || b == nullptr || c == nullptr) return kBadArgument;
  Enqueue(stream, [=, by = *scale, kept = *keep] {
    for (int i = 0; i < count; ++i) {
      cblas_sgemm(CblasColMajor, left_form == 0 ? CblasNoTrans : CblasTrans,
                  right_form == 0 ? CblasNoTrans : CblasTrans, rows, columns, inner, by, a + left_step * i,
                  left_stride, b + right_step * i, right_stride, kept, c + out_step * i, out_stride);
    }
  });
  return 0;
}

STAND_IN int cublasSgemm_v2(void* handle, int left_form, int right_form, int rows, int columns, int inner,
                            const float* scale, const float* left, int left_stride, const float* right,
                            int right_stride, const float* keep, float* out, int out_stride) {
  return cublasSgemmStridedBatched(handle, left_form, right_form, rows, columns, inner, scale, left,
                                   left_stride, 0, right, right_stride, 0, keep, out, out_stride, 0, 1);
}

}  // namespace muster::stand_in
