#include <map>

#include "ceph/store/backend.h"

namespace muster {
namespace {

class HeapBuffer final : public StoreBuffer {
 public:
  explicit HeapBuffer(size_t bytes) : HeapBuffer(bytes, std::make_unique_for_overwrite<std::byte[]>(bytes)) {}

 private:
  HeapBuffer(size_t bytes, std::unique_ptr<std::byte[]> memory)
      : StoreBuffer({memory.get(), bytes}), memory_(std::move(memory)) {}
  const std::unique_ptr<std::byte[]> memory_;
};

// In a function: backends register before main, in no known order.
std::map<std::string, OpenBackend>& Backends() {
  static std::map<std::string, OpenBackend> backends{{"dir", &OpenDirectoryStore}};
  return backends;
}

}  // namespace

std::unique_ptr<StoreBuffer> Store::NewBuffer(size_t bytes) {
  return std::make_unique<HeapBuffer>(bytes);
}

bool RegisterBackend(const std::string& scheme, OpenBackend open) {
  Backends()[scheme] = open;
  return true;
}

Result<std::unique_ptr<Store>> OpenStore(const StoreOptions& options) {
  const size_t colon = options.url.find(':');
  const std::string scheme = options.url.substr(0, colon);
  const auto backend = Backends().find(scheme);
  if (colon == std::string::npos || colon + 1 == options.url.size() || backend == Backends().end()) {
    std::string known;
    for (const auto& [name, open] : Backends()) {
      known += (known.empty() ? "" : ", ") + (name == "dir" ? std::string("dir:/PATH") : name + ":POOL");
    }
    return Error{Errc::kInvalid, "store '" + options.url + "' is not one that this program knows: " + known};
  }
  if (options.operation_timeout_seconds < 1) {
    return Error{Errc::kInvalid,
                 "store '" + options.url + "': the operation timeout must be at least 1 second"};
  }
  return backend->second(options, options.url.substr(colon + 1));
}

}  // namespace muster
