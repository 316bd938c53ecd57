// The few functions of NVIDIA's driver API that a save of GPU memory needs, out of the libcuda that the program itself has
// loaded: libmuster neither links it nor loads it.
// Names, signatures and values are those of CUDA's cuda.h (version 11 and later).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace muster::client {

struct Cuda {
  using Context = void*;
  using Stream = void*;
  using Event = void*;

  static constexpr int kSuccess = 0;                  // CUDA_SUCCESS
  static constexpr int kInvalidValue = 1;             // CUDA_ERROR_INVALID_VALUE
  static constexpr int kPointerContext = 1;           // CU_POINTER_ATTRIBUTE_CONTEXT
  static constexpr int kPointerDevice = 9;            // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
  static constexpr int kNotCapturing = 0;             // CU_STREAM_CAPTURE_STATUS_NONE
  static constexpr int kCaptureRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
  static constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
  static constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
  static constexpr unsigned kRegisterPortable = 1;    // CU_MEMHOSTREGISTER_PORTABLE

  int (*pointer_attribute)(void* out, int attribute, uint64_t pointer);
  int (*retain_primary)(Context* out, int device);
  int (*release_primary)(int device);
  int (*push_context)(Context context);
  int (*pop_context)(Context* out);
  int (*exchange_capture_mode)(int* mode);
  int (*create_stream)(Stream* out, unsigned flags);
  int (*destroy_stream)(Stream stream);
  int (*stream_context)(Stream stream, Context* out);
  int (*stream_capturing)(Stream stream, int* out);
  int (*wait_event)(Stream stream, Event event, unsigned flags);
  int (*synchronize)(Stream stream);
  int (*create_event)(Event* out, unsigned flags);
  int (*destroy_event)(Event event);
  int (*record_event)(Event event, Stream stream);
  int (*copy)(uint64_t to, uint64_t from, size_t bytes, Stream stream);
  int (*register_memory)(void* memory, size_t bytes, unsigned flags);
  int (*unregister_memory)(void* memory);
  int (*error_text)(int error, const char** out);

  // False: *missing is the function that the library lacks, or nullptr: the process has not loaded it.
  bool Find(const char** missing);
};

}  // namespace muster::client
