#include "client/libmuster/slice_copy.h"

#include "client/libmuster/large_copy.h"

namespace muster::client {
namespace {

// Bytes from one index of a dimension to the next, row by row.
void Strides(const Box& box, uint32_t dims, uint64_t element_bytes, uint64_t (&out)[MUSTER_DIMS_MAX]) {
  uint64_t stride = element_bytes;
  for (uint32_t d = dims; d-- > 0;) {
    out[d] = stride;
    stride *= box.shape[d];
  }
}

uint64_t Place(const Box& inner, const Box& outer, uint32_t dims,
               const uint64_t (&strides)[MUSTER_DIMS_MAX]) {
  uint64_t at = 0;
  for (uint32_t d = 0; d < dims; ++d) at += (inner.offset[d] - outer.offset[d]) * strides[d];
  return at;
}

struct Geometry {
  // In the shard, and where they are copied to.
  uint64_t from_strides[MUSTER_DIMS_MAX];
  uint64_t to_strides[MUSTER_DIMS_MAX];
  uint32_t level;                        // from this dimension on the elements lie in a row on both sides,
  uint64_t extent[MUSTER_DIMS_MAX + 1];  // extent[level] bytes; the others: all of a dimension, gaps included
};

Geometry GeometryOf(const Piece& piece, const Box& want) {
  Geometry g{};
  Strides(piece.part, piece.dims, piece.element_bytes, g.from_strides);
  Strides(want, piece.dims, piece.element_bytes, g.to_strides);
  uint64_t run = piece.element_bytes;
  g.level = piece.dims;
  while (g.level > 0) {
    const uint32_t d = --g.level;
    run *= piece.box.shape[d];
    if (piece.box.shape[d] != piece.part.shape[d] || piece.box.shape[d] != want.shape[d]) break;
  }
  g.extent[g.level] = run;
  for (uint32_t d = g.level; d-- > 0;)
    g.extent[d] = (piece.box.shape[d] - 1) * g.from_strides[d] + g.extent[d + 1];
  return g;
}

struct Window {
  const char* data;
  uint64_t begin;
  uint64_t end;
};

void Copy(const Geometry& g, const Piece& piece, uint32_t d, uint64_t from, char* to, const Window& window) {
  if (d == g.level) {
    const uint64_t begin = from > window.begin ? from : window.begin;
    const uint64_t end = from + g.extent[d] < window.end ? from + g.extent[d] : window.end;
    if (begin < end) LargeCopy(to + (begin - from), window.data + (begin - window.begin), end - begin, 1);
    return;
  }
  // Those that end before the window are passed over without a look at each.
  uint64_t i = 0;
  if (from + g.extent[d + 1] <= window.begin)
    i = (window.begin - from - g.extent[d + 1]) / g.from_strides[d] + 1;
  for (; i < piece.box.shape[d]; ++i) {
    const uint64_t at = from + i * g.from_strides[d];
    if (at >= window.end) return;
    Copy(g, piece, d + 1, at, to + i * g.to_strides[d], window);
  }
}

}  // namespace

bool AddPiece(const Piece& given, uint64_t gap, Array<Piece>* pieces) {
  Piece piece = given;
  uint64_t strides[MUSTER_DIMS_MAX];
  Strides(piece.part, piece.dims, piece.element_bytes, strides);
  // The outermost dimension that has more than one index in the box decides: gaps further inside are smaller.
  uint64_t extent = piece.element_bytes;
  for (uint32_t d = 0; d < piece.dims; ++d) extent += (piece.box.shape[d] - 1) * strides[d];
  for (uint32_t d = 0; d < piece.dims; ++d) {
    const uint64_t count = piece.box.shape[d];
    if (count == 1) continue;
    const uint64_t inner = extent - (count - 1) * strides[d];
    if (strides[d] - inner < gap) break;
    piece.box.shape[d] = 1;
    for (uint64_t i = 0; i < count; ++i) {
      if (!AddPiece(piece, gap, pieces)) return false;
      ++piece.box.offset[d];
    }
    return true;
  }
  piece.begin = piece.data_at + Place(piece.box, piece.part, piece.dims, strides);
  piece.end = piece.begin + extent;
  return pieces->Add(piece);
}

void CopyPiece(const Piece& piece, const Box& want, const char* window, uint64_t window_begin,
               uint64_t window_end, char* into) {
  const Geometry geometry = GeometryOf(piece, want);
  char* to = into + Place(piece.box, want, piece.dims, geometry.to_strides);
  Copy(geometry, piece, 0, piece.begin, to, {window, window_begin, window_end});
}

}  // namespace muster::client
