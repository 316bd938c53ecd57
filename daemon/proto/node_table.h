// The nodes of a Start in few bytes: at 2,048 nodes x 8 tasks some 5 KB, and 120 KB as a list of NodeSpec. Pure functions.
#pragma once

#include "base/result.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

// Moves what is in `nodes` to `table`.
void PackNodes(v1::Start* start);

// And back. A Start without a table stays as it is: the first version sends none. kInvalid when the table contradicts
// itself or is larger than any step; `nodes` is then empty.
Status UnpackNodes(v1::Start* start);

}  // namespace muster
