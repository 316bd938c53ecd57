#include "client/libmuster/slice.h"

#include <stdio.h>
#include <string.h>

namespace muster::client {
namespace {

constexpr char kMark[] = "muster-slice/";
constexpr char kVersion[] = "1 ";

bool IsDtype(const char* text) {
  const size_t size = text != nullptr ? strnlen(text, MUSTER_DTYPE_MAX + 1) : 0;
  if (size == 0 || size > MUSTER_DTYPE_MAX) return false;
  for (size_t i = 0; i < size; ++i) {
    if (text[i] <= ' ' || text[i] > '~') return false;
  }
  return true;
}

// The bytes of a whole of this shape; false when they are more than anybody can have.
bool BytesOf(const uint64_t* shape, uint32_t dims, uint64_t element_bytes, uint64_t* out) {
  uint64_t bytes = element_bytes;
  for (uint32_t d = 0; d < dims; ++d) {
    if (__builtin_mul_overflow(bytes, shape[d], &bytes) || bytes > static_cast<uint64_t>(INT64_MAX))
      return false;
  }
  *out = bytes;
  return true;
}

// A number up to `end_mark`, which is passed over.
bool ReadBound(const char** at, char end_mark, uint64_t* out) {
  uint64_t value = 0;
  const char* p = *at;
  for (; *p >= '0' && *p <= '9'; ++p) {
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(*p - '0'), &value)) {
      return false;
    }
  }
  if (p == *at || *p != end_mark) return false;
  *at = p + 1;
  *out = value;
  return true;
}

// `dims` numbers with commas between them ("-" for none) up to `end_mark`. UINT32_MAX: as many as there are.
bool ReadDims(const char** at, char end_mark, uint64_t* out, uint32_t* dims) {
  if (**at == '-') {
    if ((*at)[1] != end_mark || (*dims != 0 && *dims != UINT32_MAX)) return false;
    *at += 2;
    *dims = 0;
    return true;
  }
  for (uint32_t d = 0; d < MUSTER_DIMS_MAX; ++d) {
    if (ReadBound(at, ',', &out[d])) continue;
    if (!ReadBound(at, end_mark, &out[d]) || (*dims != d + 1 && *dims != UINT32_MAX)) return false;
    *dims = d + 1;
    return true;
  }
  return false;
}

}  // namespace

const char* CheckSlice(const muster_slice* slice, size_t bytes, char (&text)[kSliceText]) {
  if (slice == nullptr) return "has no slice: it is NULL";
  if (!IsDtype(slice->dtype)) return "has no dtype: 1 to 31 visible characters";
  if (slice->element_bytes == 0) return "has elements of 0 bytes";
  if (slice->dims > MUSTER_DIMS_MAX) {
    snprintf(text, sizeof(text), "has %u dimensions; up to %d are allowed", slice->dims, MUSTER_DIMS_MAX);
    return text;
  }
  uint64_t whole = 0;
  if (!BytesOf(slice->global_shape, slice->dims, slice->element_bytes, &whole)) {
    return "has a global shape of more than 2^63 bytes";
  }
  for (uint32_t d = 0; d < slice->dims; ++d) {
    if (slice->offset[d] <= slice->global_shape[d] &&
        slice->shape[d] <= slice->global_shape[d] - slice->offset[d]) {
      continue;
    }
    snprintf(text, sizeof(text), "goes beyond dimension %u: %llu from %llu on, of %llu", d,
             static_cast<unsigned long long>(slice->shape[d]),
             static_cast<unsigned long long>(slice->offset[d]),
             static_cast<unsigned long long>(slice->global_shape[d]));
    return text;
  }
  // Not above the whole, but where that is empty.
  uint64_t part = 0;
  if (!BytesOf(slice->shape, slice->dims, slice->element_bytes, &part) || part != bytes) {
    char dims[kDimsText];
    snprintf(text, sizeof(text), "is of shape %.150s and %u bytes each: not %zu bytes",
             FormatDims(slice->shape, slice->dims, dims), slice->element_bytes, bytes);
    return text;
  }
  return nullptr;
}

Box BoxOf(const muster_slice& slice) {
  Box box{};
  memcpy(box.offset, slice.offset, sizeof(box.offset));
  memcpy(box.shape, slice.shape, sizeof(box.shape));
  return box;
}

uint64_t ElementsOf(const uint64_t* shape, uint32_t dims) {
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dims; ++d) elements *= shape[d];
  return elements;
}

bool Intersect(const Box& a, const Box& b, uint32_t dims, Box* out) {
  for (uint32_t d = 0; d < dims; ++d) {
    const uint64_t begin = a.offset[d] > b.offset[d] ? a.offset[d] : b.offset[d];
    const uint64_t a_end = a.offset[d] + a.shape[d];
    const uint64_t b_end = b.offset[d] + b.shape[d];
    const uint64_t end = a_end < b_end ? a_end : b_end;
    if (begin >= end) return false;
    out->offset[d] = begin;
    out->shape[d] = end - begin;
  }
  return true;
}

size_t FormatSlice(const muster_slice& slice, uint32_t part, char* to) {
  char whole[kDimsText];
  char offset[kDimsText];
  char shape[kDimsText];
  const int size =
      snprintf(to, kSliceMeta, "%s%s%s %u %u %s %s %s\n", kMark, kVersion, slice.dtype, slice.element_bytes,
               part, FormatDims(slice.global_shape, slice.dims, whole),
               FormatDims(slice.offset, slice.dims, offset), FormatDims(slice.shape, slice.dims, shape));
  return static_cast<size_t>(size);
}

SliceMeta ParseSlice(const char* meta, size_t bytes, StoredSlice* out) {
  if (strncmp(meta, kMark, sizeof(kMark) - 1) != 0) return SliceMeta::kNone;
  const char* at = meta + sizeof(kMark) - 1;
  if (strncmp(at, kVersion, sizeof(kVersion) - 1) != 0) return SliceMeta::kVersion;
  at += sizeof(kVersion) - 1;
  const char* space = strchr(at, ' ');
  const size_t size = space != nullptr ? static_cast<size_t>(space - at) : 0;
  if (size == 0 || size > MUSTER_DTYPE_MAX) return SliceMeta::kMalformed;
  muster_slice slice{};
  memcpy(out->dtype, at, size);
  out->dtype[size] = '\0';
  slice.dtype = out->dtype;
  at = space + 1;
  uint64_t element_bytes = 0;
  uint64_t part = 0;
  uint32_t dims = UINT32_MAX;
  if (!ReadBound(&at, ' ', &element_bytes) || element_bytes > UINT32_MAX || !ReadBound(&at, ' ', &part) ||
      part > UINT32_MAX || !ReadDims(&at, ' ', slice.global_shape, &dims) ||
      !ReadDims(&at, ' ', slice.offset, &dims) || !ReadDims(&at, '\n', slice.shape, &dims)) {
    return SliceMeta::kMalformed;
  }
  slice.element_bytes = static_cast<uint32_t>(element_bytes);
  slice.dims = dims;
  char text[kSliceText];
  if (CheckSlice(&slice, bytes, text) != nullptr) return SliceMeta::kMalformed;
  out->element_bytes = slice.element_bytes;
  out->dims = dims;
  memcpy(out->global_shape, slice.global_shape, sizeof(out->global_shape));
  out->box = BoxOf(slice);
  out->part = static_cast<uint32_t>(part);
  out->meta = at;
  return SliceMeta::kSlice;
}

const char* FormatDims(const uint64_t* values, uint32_t dims, char* to) {
  if (dims == 0) return strcpy(to, "-");
  size_t at = 0;
  for (uint32_t d = 0; d < dims; ++d) {
    at += static_cast<size_t>(snprintf(to + at, kDimsText - at, "%s%llu", d > 0 ? "," : "",
                                       static_cast<unsigned long long>(values[d])));
  }
  return to;
}

}  // namespace muster::client
