// What users' checkpoints take of the store.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "ceph/store/store.h"

namespace muster {

// Of one user's space, or of all when it is empty: {"users": [{"uid", ..., "keys": [...]}]}. `user_limit`: what each may
// have, 0: as much as they like. Blocks for the store.
Result<nlohmann::json> StorageReport(const std::shared_ptr<Store>& store,
                                     const std::optional<std::string>& space, uint64_t user_limit);

}  // namespace muster
