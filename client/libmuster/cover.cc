#include "client/libmuster/cover.h"

namespace muster::client {

bool Cover::Begin(const Box& wanted, uint32_t dims) {
  dims_ = dims;
  missing_.Clear();
  return ElementsOf(wanted.shape, dims) == 0 || missing_.Add(wanted);
}

Cover::Taken Cover::Take(const Box& part, Array<Box>* pieces) {
  if (ElementsOf(part.shape, dims_) == 0) return Taken::kDone;
  // From the end, so that what is added meanwhile, which `part` has nothing of, is not looked at again.
  for (size_t i = missing_.size(); i-- > 0;) {
    Box rest = missing_[i];
    Box both{};
    if (!Intersect(rest, part, dims_, &both)) continue;
    if (!pieces->Add(both)) return Taken::kNoMemory;
    missing_.Remove(i);
    // What is around the common part: before and behind it in each dimension, within it in those that came before.
    for (uint32_t d = 0; d < dims_; ++d) {
      const uint64_t end = rest.offset[d] + rest.shape[d];
      const uint64_t both_end = both.offset[d] + both.shape[d];
      Box outside = rest;
      outside.shape[d] = both.offset[d] - rest.offset[d];
      if (outside.shape[d] > 0 && !missing_.Add(outside)) return Taken::kNoMemory;
      outside.offset[d] = both_end;
      outside.shape[d] = end - both_end;
      if (outside.shape[d] > 0 && !missing_.Add(outside)) return Taken::kNoMemory;
      rest.offset[d] = both.offset[d];
      rest.shape[d] = both.shape[d];
    }
    if (missing_.size() > kMost) return Taken::kTooMany;
  }
  return Taken::kDone;
}

}  // namespace muster::client
