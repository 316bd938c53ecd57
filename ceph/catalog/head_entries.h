// The entries of a gang's head, as Catalog reads and writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "ceph/store/store.h"

namespace muster::head_entries {

inline constexpr char kRecord[] = "record";
inline constexpr char kLatest[] = "latest";

// Of a checkpoint.
std::string EntryName(uint64_t step);
// kCorrupt for a head that is not one of ours. One checkpoint's entry that does not read is a bad checkpoint.
Result<GangHead> Decode(const std::string& key, const Head& head);
std::optional<uint64_t> NewestGood(const std::vector<CheckpointInfo>& ascending);
// Makes `latest` what it has to be with these checkpoints.
void SetLatest(const std::vector<CheckpointInfo>& ascending, HeadUpdate* update);
// Under the head's own fence, and only if its checkpoints are still these: others may change them under the same fence.
HeadUpdate Guarded(const GangHead& head);

}  // namespace muster::head_entries
