// What Gloo lacks for this mesh: reductions of every type and operation, and a reduce-scatter.
#pragma once

#include <cstddef>

#include "net/collectives/gloo_mesh.h"
#include "net/collectives/operation.h"

namespace muster {

// Reduces `count` elements of `left` and `right` into `out`, which may be either of them.
using Reduction = void (*)(void* out, const void* left, const void* right, std::size_t count);
[[nodiscard]] Reduction ReductionOf(DataType type, ReduceOp op);

// Part r of `data` ends, reduced, on member r; the other parts are undefined. Members exchange halves where their number is a
// power of two; else the parts go round a ring. The order of the reductions depends on the count of members alone. Throws as
// Gloo's own operations do.
void ReduceScatter(GlooMesh& mesh, const Operation& operation, std::byte* data);

}  // namespace muster
