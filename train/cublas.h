// What the trainer uses of cuBLAS, declared after its cublas_api.h (releases 12 and 13): Muster is built without CUDA.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "net/collectives/cuda_abi.h"

namespace muster::train::cublas {

using Handle = void*;

inline constexpr int kSuccess = 0;     // CUBLAS_STATUS_SUCCESS
inline constexpr int kPlain = 0;       // CUBLAS_OP_N
inline constexpr int kTransposed = 1;  // CUBLAS_OP_T

// The functions, by the ends of their names. Matrices are column-major; the two scales are read on the host, at once.
struct Functions {
  int (*Create)(Handle* out);                            // _v2
  int (*Destroy)(Handle handle);                         // _v2
  int (*SetStream)(Handle handle, cuda::Stream stream);  // _v2
  int (*Sgemm)(Handle handle, int left_form, int right_form, int rows, int columns, int inner,
               const float* scale, const float* left, int left_stride, const float* right, int right_stride,
               const float* keep, float* out, int out_stride);  // _v2
  int (*SgemmStridedBatched)(Handle handle, int left_form, int right_form, int rows, int columns, int inner,
                             const float* scale, const float* left, int left_stride, long long left_step,
                             const float* right, int right_stride, long long right_step, const float* keep,
                             float* out, int out_stride, long long out_step, int count);
  const char* (*GetStatusString)(int status);
};

// The first of the files that there is, as dlopen takes them. It stays loaded until the process ends. kNotFound when there is
// none, kInvalid when it lacks a function.
[[nodiscard]] Result<Functions> Load(std::span<const std::string> files);

}  // namespace muster::train::cublas
