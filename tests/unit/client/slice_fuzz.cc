// The metadata of a slice: whatever is read says a part that lies within its whole, and is written again as it was.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "client/libmuster/slice.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::client;
  uint64_t bytes = 0;
  if (size < sizeof(bytes)) return 0;
  memcpy(&bytes, data, sizeof(bytes));
  const std::string meta(reinterpret_cast<const char*>(data) + sizeof(bytes), size - sizeof(bytes));
  StoredSlice stored{};
  if (ParseSlice(meta.c_str(), bytes, &stored) != SliceMeta::kSlice) return 0;
  muster_slice slice{stored.dtype, stored.element_bytes, stored.dims, {}, {}, {}};
  for (uint32_t d = 0; d < stored.dims; ++d) {
    slice.global_shape[d] = stored.global_shape[d];
    slice.offset[d] = stored.box.offset[d];
    slice.shape[d] = stored.box.shape[d];
    if (slice.offset[d] + slice.shape[d] > slice.global_shape[d]) abort();
  }
  if (ElementsOf(slice.shape, slice.dims) * slice.element_bytes != bytes) abort();
  char text[kSliceMeta];
  const std::string again(text, FormatSlice(slice, stored.part, text));
  StoredSlice twice{};
  if (ParseSlice(again.c_str(), bytes, &twice) != SliceMeta::kSlice || twice.part != stored.part) abort();
  return 0;
}
