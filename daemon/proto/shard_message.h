// A shard as daemons tell it to each other. Pure functions.
#pragma once

#include "ceph/catalog/manifest.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

void PutShard(const Shard& shard, v1::Shard* message);
// Only the form is taken over; whether the shard is consistent is checked with its manifest.
Shard TakeShard(const v1::Shard& message);

}  // namespace muster
