// The pieces of the decoder and its optimizer on a CUDA device: cuBLAS, and the kernels of kernels.cu.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/ops.h"

namespace muster::train {

// The libraries, as dlopen takes them; of cuBLAS the first that there is. Nothing is linked.
struct CudaLibraries {
  std::string cuda = "libcuda.so.1";
  std::vector<std::string> cublas = {"libcublas.so.13", "libcublas.so.12"};
};

// On the member's device, as GroupOptions::device names it, in its primary context: NCCL sees the same memory. Results
// are close to those of HostOps, and the same bits again on a device of the same type with the same cuBLAS. kNotFound
// without a driver, a device or cuBLAS; kInvalid in a build without kernels.
[[nodiscard]] Result<std::unique_ptr<Ops>> MakeCudaOps(const CudaLibraries& libraries, int device);

}  // namespace muster::train
