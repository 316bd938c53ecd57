#include "net/collectives/nccl_library.h"

#include <dlfcn.h>

#include "base/symbols.h"

namespace muster::nccl {
namespace {

std::string VersionText(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Result<Library> Load(const std::string& file) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error{Errc::kNotFound, std::string("NCCL cannot be loaded: ") + ::dlerror() +
                                      "; install it, or have LD_LIBRARY_PATH name its directory"};
  }
  Library library{};
  Symbols look{handle, {}};
  Functions& functions = library.functions;
  look("ncclGetVersion", functions.GetVersion);
  int version = 0;
  if (functions.GetVersion != nullptr) {
    if (const Code code = functions.GetVersion(&version); code != kSuccess)
      return Error{Errc::kInvalid, file + " does not say its version: error " + std::to_string(code)};
    // Until 2.8 a version had fewer digits; those are too old as well.
    if (version < kOldest) {
      return Error{Errc::kInvalid, file + " is NCCL " +
                                       (version < 10'000 ? "2.8 or older" : VersionText(version)) +
                                       ", and the oldest that will do is " + VersionText(kOldest)};
    }
  }
  look("ncclGetUniqueId", functions.GetUniqueId);
  look("ncclCommInitRankConfig", functions.CommInitRankConfig);
  if (version >= kScalable) look("ncclCommInitRankScalable", functions.CommInitRankScalable);
  look("ncclCommFinalize", functions.CommFinalize);
  look("ncclCommDestroy", functions.CommDestroy);
  look("ncclCommAbort", functions.CommAbort);
  look("ncclCommGetAsyncError", functions.CommGetAsyncError);
  look("ncclGetErrorString", functions.GetErrorString);
  look("ncclGetLastError", functions.GetLastError);
  look("ncclAllReduce", functions.AllReduce);
  look("ncclReduceScatter", functions.ReduceScatter);
  look("ncclAllGather", functions.AllGather);
  look("ncclBroadcast", functions.Broadcast);
  if (!look.missing.empty()) return Error{Errc::kInvalid, file + " has no function " + look.missing};
  library.name = "NCCL " + VersionText(version);
  return library;
}

}  // namespace muster::nccl
