// What the muster command changes of checkpoints: pins, and which of them there are. Everything here blocks for the store;
// the documents are in docs/operations.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "ceph/catalog/retention.h"
#include "daemon/service/checkpoint_queries.h"

namespace muster {

// "": takes the pin away.
Result<nlohmann::json> PinCheckpoint(const CheckpointsOf& of, uint64_t step, const std::string& name);
Result<nlohmann::json> DeleteCheckpoint(const CheckpointsOf& of, uint64_t step);
// Removes what retention does not keep.
Result<nlohmann::json> PruneCheckpoints(const CheckpointsOf& of, Retention retention);

}  // namespace muster
