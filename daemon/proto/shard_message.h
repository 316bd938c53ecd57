// A shard as daemons tell it to each other. Pure functions.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "ceph/catalog/manifest.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

void PutShard(const Shard& shard, v1::Shard* message);
// Only the form is taken over; whether the shard is consistent is checked with its manifest.
Shard TakeShard(const v1::Shard& message);

// Of a Shard, so that any message with one in it is below what gRPC is told to take (kMaxRpcMessage).
inline constexpr size_t kMaxShardMessage = 15 << 20;
// kExhausted: it is above that, and would end whatever connection it is sent on.
Status CheckFits(const v1::Shard& message);

}  // namespace muster
