// Entries of heads come from the store.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ceph/catalog/checkpoint_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entry = muster::DecodeCheckpointEntry("k", 100, {reinterpret_cast<const char*>(data), size});
  if (!entry) return 0;
  if (!muster::DecodeCheckpointEntry("k", 100, muster::EncodeCheckpointEntry(*entry))) std::abort();
  return 0;
}
