// The value of a head's "checkpoint/STEP" entry.
#pragma once

#include <string>
#include <string_view>

#include "ceph/catalog/catalog.h"

namespace muster {

std::string EncodeCheckpointEntry(const CheckpointInfo& info);
// kCorrupt for anything else than an entry of that key and step.
Result<CheckpointInfo> DecodeCheckpointEntry(std::string_view key, uint64_t step, std::string_view text);

}  // namespace muster
