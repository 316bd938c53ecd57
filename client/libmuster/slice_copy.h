// Where the elements of a slice's piece lie in a shard, and copying them from there.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/array.h"
#include "client/libmuster/slice.h"

namespace muster::client {

// What a wanted slice takes from one stored part: the elements in `box`.
struct Piece {
  size_t wanted;  // the how many-th of the wanted ones
  uint32_t rank;  // whose shard has it
  uint32_t element_bytes;
  uint32_t dims;
  uint64_t data_at;  // where the part's data begin in the shard
  Box part;
  Box box;         // within `part`
  uint64_t begin;  // in the shard: all of the piece lies between these
  uint64_t end;
};

// Adds a piece to `pieces` with its place in the shard; where it would have gaps of `gap` bytes or more, as several. False
// when there is no memory.
[[nodiscard]] bool AddPiece(const Piece& piece, uint64_t gap, Array<Piece>* pieces);

// Copies what of the piece lies in bytes `window_begin` to `window_end` - 1 of the shard, which are at `window`, to its place
// in `into`, which holds the slice `want` row by row.
void CopyPiece(const Piece& piece, const Box& want, const char* window, uint64_t window_begin,
               uint64_t window_end, char* into);

}  // namespace muster::client
