// What a node has told its coordinator and repeats in each Register, because a coordinator may die before it has acted on it.
#pragma once

#include <optional>

#include "daemon/gang_job/failed_saves.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

struct ToldAgain {
  FailedSaves failed_saves;
  std::optional<v1::CheckpointBad> bad_checkpoint;  // the newest report; its generation may be over
};

}  // namespace muster
