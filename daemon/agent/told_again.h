// What a node tells every coordinator again when it registers: a coordinator may die with what it was told.
#pragma once

#include <optional>

#include "daemon/gang_job/failed_saves.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

struct ToldAgain {
  FailedSaves failed_saves;
  std::optional<v1::CheckpointBad> bad_checkpoint;  // the newest that was found, of whatever generation
};

}  // namespace muster
