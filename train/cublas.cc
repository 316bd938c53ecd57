#include "train/cublas.h"

#include <dlfcn.h>

#include "base/symbols.h"

namespace muster::train::cublas {

Result<Functions> Load(std::span<const std::string> files) {
  void* handle = nullptr;
  std::string name;
  std::string why;
  for (const std::string& file : files) {
    name = file;
    handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    why += std::string(why.empty() ? "" : "; ") + ::dlerror();
  }
  if (handle == nullptr) {
    return Error{Errc::kNotFound, "cuBLAS cannot be loaded: " + why +
                                      "; install it, or have LD_LIBRARY_PATH name its directory"};
  }
  Functions functions{};
  Symbols look{handle, {}};
  look("cublasCreate_v2", functions.Create);
  look("cublasDestroy_v2", functions.Destroy);
  look("cublasSetStream_v2", functions.SetStream);
  look("cublasSgemm_v2", functions.Sgemm);
  look("cublasSgemmStridedBatched", functions.SgemmStridedBatched);
  look("cublasGetStatusString", functions.GetStatusString);
  if (!look.missing.empty()) return Error{Errc::kInvalid, name + " has no function " + look.missing};
  return functions;
}

}  // namespace muster::train::cublas
