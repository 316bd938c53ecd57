// A part of a named tensor: what may be one, and how it is said in an entry's metadata (docs/formats.md, section 6).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/muster.h"

namespace muster::client {

// Where a part lies in the whole: dimensions from the slowest to the fastest; those from a tensor's number on are unused.
struct Box {
  uint64_t offset[MUSTER_DIMS_MAX];
  uint64_t shape[MUSTER_DIMS_MAX];
};

// A part that a shard has.
struct StoredSlice {
  char dtype[MUSTER_DTYPE_MAX + 1];
  uint32_t element_bytes;
  uint32_t dims;
  uint64_t global_shape[MUSTER_DIMS_MAX];
  Box box;
  uint32_t part;     // the how many-th of its name in its shard, from 0
  const char* meta;  // the program's own
};

// nullptr for a slice whose data may be `bytes` bytes, else what is wrong with it: a sentence without its subject, in
// `text`.
inline constexpr size_t kSliceText = 256;
const char* CheckSlice(const muster_slice* slice, size_t bytes, char (&text)[kSliceText]);

Box BoxOf(const muster_slice& slice);
// Elements of a shape that CheckSlice has passed.
uint64_t ElementsOf(const uint64_t* shape, uint32_t dims);
// The part of the whole that both have; false when there is none.
bool Intersect(const Box& a, const Box& b, uint32_t dims, Box* out);

// What is put in front of the program's metadata. `to` has room for kSliceMeta.
inline constexpr size_t kSliceMeta = MUSTER_META_MAX - MUSTER_SLICE_META_MAX;
size_t FormatSlice(const muster_slice& slice, uint32_t part, char* to);
enum class SliceMeta { kNone, kSlice, kMalformed, kVersion };
// Reads an entry's metadata; `bytes` is how much data it has. kNone: the entry is no slice.
SliceMeta ParseSlice(const char* meta, size_t bytes, StoredSlice* out);

// "2,0", "-" without dimensions; for sentences. `to` has room for kDimsText.
inline constexpr size_t kDimsText = 21 * MUSTER_DIMS_MAX + 1;
const char* FormatDims(const uint64_t* values, uint32_t dims, char* to);

}  // namespace muster::client
