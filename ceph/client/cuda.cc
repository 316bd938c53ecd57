#include "ceph/client/cuda.h"

#include <dlfcn.h>

#include "ceph/client/first_version.h"

// Without libdl in the process there is no libcuda either.
MUSTER_FIRST_VERSION(dlopen);
MUSTER_FIRST_VERSION(dlsym);

namespace muster::client {
namespace {

template <typename Function>
bool Look(void* library, const char* name, Function** out) {
  *out = reinterpret_cast<Function*>(dlsym(library, name));
  return *out != nullptr;
}

}  // namespace

bool Cuda::Find() {
  if (&dlopen == nullptr || &dlsym == nullptr) return false;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  // The library stays open: what has been found is used until the process ends.
  return Look(library, "cuPointerGetAttribute", &pointer_attribute) &&
         Look(library, "cuDevicePrimaryCtxRetain", &retain_primary) &&
         Look(library, "cuDevicePrimaryCtxRelease_v2", &release_primary) &&
         Look(library, "cuCtxPushCurrent_v2", &push_context) &&
         Look(library, "cuCtxPopCurrent_v2", &pop_context) &&
         Look(library, "cuStreamCreate", &create_stream) &&
         Look(library, "cuStreamDestroy_v2", &destroy_stream) &&
         Look(library, "cuStreamWaitEvent", &wait_event) &&
         Look(library, "cuStreamSynchronize", &synchronize) &&
         Look(library, "cuEventCreate", &create_event) &&
         Look(library, "cuEventDestroy_v2", &destroy_event) &&
         Look(library, "cuEventRecord", &record_event) && Look(library, "cuMemcpyAsync", &copy) &&
         Look(library, "cuMemHostRegister_v2", &register_memory) &&
         Look(library, "cuMemHostUnregister", &unregister_memory) &&
         Look(library, "cuGetErrorString", &error_text);
}

}  // namespace muster::client
