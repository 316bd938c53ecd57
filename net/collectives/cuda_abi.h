// What Muster's collectives and its trainer use of NVIDIA's driver API, declared after CUDA's cuda.h (version 11 and
// later): Muster is built without CUDA. The driver has one name, libcuda.so.1, and is on every node with a GPU; the runtime
// library is not. tests/frameworks/nccl_abi_check.cc holds this against cuda.h.
#pragma once

#include <cstddef>

namespace muster::cuda {

using Context = void*;
using Stream = void*;
using Event = void*;
using Module = void*;
using Function = void*;
using Address = unsigned long long;  // of device memory, or of the process's own

inline constexpr int kSuccess = 0;                     // CUDA_SUCCESS
inline constexpr int kNoDevice = 100;                  // CUDA_ERROR_NO_DEVICE
inline constexpr int kNotReady = 600;                  // CUDA_ERROR_NOT_READY
inline constexpr unsigned int kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr unsigned int kEventNoTiming = 2;      // CU_EVENT_DISABLE_TIMING

// The functions, by the ends of their names.
struct Functions {
  int (*Init)(unsigned int flags);
  int (*DeviceGetCount)(int* out);
  int (*DeviceGet)(int* out, int ordinal);
  int (*DevicePrimaryCtxRetain)(Context* out, int device);
  int (*DevicePrimaryCtxRelease)(int device);  // _v2
  int (*CtxSetCurrent)(Context context);
  int (*StreamCreate)(Stream* out, unsigned int flags);
  int (*StreamDestroy)(Stream stream);  // _v2
  int (*StreamSynchronize)(Stream stream);
  int (*EventCreate)(Event* out, unsigned int flags);
  int (*EventDestroy)(Event event);  // _v2
  int (*EventRecord)(Event event, Stream stream);
  int (*EventQuery)(Event event);
  int (*MemAlloc)(Address* out, std::size_t bytes);  // _v2
  int (*MemFree)(Address address);                   // _v2
  int (*MemcpyAsync)(Address to, Address from, std::size_t bytes, Stream stream);
  int (*MemsetD8Async)(Address to, unsigned char value, std::size_t bytes, Stream stream);
  int (*ModuleLoadData)(Module* out, const void* image);
  int (*ModuleUnload)(Module module);
  int (*ModuleGetFunction)(Function* out, Module module, const char* name);
  int (*LaunchKernel)(Function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                      unsigned int block_x, unsigned int block_y, unsigned int block_z,
                      unsigned int shared_bytes, Stream stream, void** arguments, void** extra);
  int (*GetErrorString)(int error, const char** out);
};

}  // namespace muster::cuda
