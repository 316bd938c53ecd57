#include "client/libmuster/cuda.h"

#include <dlfcn.h>

#include "client/libmuster/first_version.h"

// Without libdl in the process there is no libcuda either.
MUSTER_FIRST_VERSION(dlopen);
MUSTER_FIRST_VERSION(dlsym);

namespace muster::client {
namespace {

// Keeps the first name that is not there.
struct Lookup {
  void* library;
  const char* missing;

  template <typename Function>
  void operator()(const char* name, Function** out) {
    *out = reinterpret_cast<Function*>(dlsym(library, name));
    if (*out == nullptr && missing == nullptr) missing = name;
  }
};

}  // namespace

bool Cuda::Find(const char** missing) {
  *missing = nullptr;
  if (&dlopen == nullptr || &dlsym == nullptr) return false;
  // It stays open: what has been found is used until the process ends.
  Lookup look{dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr};
  if (look.library == nullptr) return false;
  look("cuPointerGetAttribute", &pointer_attribute);
  look("cuDevicePrimaryCtxRetain", &retain_primary);
  look("cuDevicePrimaryCtxRelease_v2", &release_primary);
  look("cuCtxPushCurrent_v2", &push_context);
  look("cuCtxPopCurrent_v2", &pop_context);
  look("cuThreadExchangeStreamCaptureMode", &exchange_capture_mode);
  look("cuStreamCreate", &create_stream);
  look("cuStreamDestroy_v2", &destroy_stream);
  look("cuStreamGetCtx", &stream_context);
  look("cuStreamIsCapturing", &stream_capturing);
  look("cuStreamWaitEvent", &wait_event);
  look("cuStreamSynchronize", &synchronize);
  look("cuEventCreate", &create_event);
  look("cuEventDestroy_v2", &destroy_event);
  look("cuEventRecord", &record_event);
  look("cuMemcpyAsync", &copy);
  look("cuMemHostRegister_v2", &register_memory);
  look("cuMemHostUnregister", &unregister_memory);
  look("cuGetErrorString", &error_text);
  *missing = look.missing;
  return look.missing == nullptr;
}

}  // namespace muster::client
