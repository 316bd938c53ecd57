#include "net/collectives/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace muster::nccl {
namespace {

std::string VersionText(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Looks functions up, and keeps the name of the first that is not there.
struct Lookup {
  void* library;
  std::string missing;

  template <typename Function>
  void operator()(const char* name, Function& function) {
    const std::string symbol = std::string("nccl") + name;
    function = reinterpret_cast<Function>(::dlsym(library, symbol.c_str()));
    if (function == nullptr && missing.empty()) missing = symbol;
  }
};

}  // namespace

Result<Library> Load(const std::string& file) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error{Errc::kNotFound, std::string("NCCL cannot be loaded: ") + ::dlerror() +
                                      "; install it, or have LD_LIBRARY_PATH name its directory"};
  }
  Library library{};
  Lookup look{handle, {}};
  Functions& functions = library.functions;
  look("GetVersion", functions.GetVersion);
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
  look("GetUniqueId", functions.GetUniqueId);
  look("CommInitRankConfig", functions.CommInitRankConfig);
  look("CommFinalize", functions.CommFinalize);
  look("CommDestroy", functions.CommDestroy);
  look("CommAbort", functions.CommAbort);
  look("CommGetAsyncError", functions.CommGetAsyncError);
  look("GetErrorString", functions.GetErrorString);
  look("GetLastError", functions.GetLastError);
  look("AllReduce", functions.AllReduce);
  look("ReduceScatter", functions.ReduceScatter);
  look("AllGather", functions.AllGather);
  look("Broadcast", functions.Broadcast);
  if (!look.missing.empty()) return Error{Errc::kInvalid, file + " has no function " + look.missing};
  library.name = "NCCL " + VersionText(version);
  return library;
}

}  // namespace muster::nccl
