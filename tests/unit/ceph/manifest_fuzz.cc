// Manifests come from the store. What is accepted must be consistent and write back to what reads the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ceph/catalog/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto manifest = muster::Manifest::Decode({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  if (manifest->shards.size() != manifest->world_size) std::abort();
  const std::string text = manifest->Encode();
  const auto again = muster::Manifest::Decode(text);
  if (!again || again->Encode() != text) std::abort();
  return 0;
}
