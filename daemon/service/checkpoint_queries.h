// What the muster command is told of checkpoints. Everything here blocks for the store; the documents are in
// docs/operations.md.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "ceph/engine/engine.h"
#include "ceph/store/store.h"

namespace muster {

// Whose checkpoints.
struct CheckpointsOf {
  std::shared_ptr<Store> store;
  Engine& engine;
  std::string space;
  std::string key;
  std::string gang;  // "" when no gang has used the key
};

Result<nlohmann::json> ListCheckpoints(const CheckpointsOf& of);
// Of one: the newest good one when no step is given. What is in the shards is told of `rank`, or of all when there are few.
Result<nlohmann::json> ShowCheckpoint(const CheckpointsOf& of, std::optional<uint64_t> step,
                                      std::optional<uint32_t> rank);

}  // namespace muster
