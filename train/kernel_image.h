// The kernels of kernels.cu as the driver loads them.
#pragma once

namespace muster::train {

// PTX, for devices of compute capability 7.5 and later; null in a build that had no nvcc.
extern const char* const kKernelImage;

}  // namespace muster::train
