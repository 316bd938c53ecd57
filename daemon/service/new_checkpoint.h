// A checkpoint that no gang has saved: made under a key of --gang=name=KEY, for the next gang that uses the key to start
// from. Everything here blocks for the store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "ceph/catalog/fence.h"
#include "ceph/catalog/manifest.h"
#include "ceph/catalog/retention.h"
#include "ceph/store/store.h"

namespace muster {

inline constexpr uint32_t kMaxImportedMembers = 65'536;

// Takes the key over, and gives the fence under which the checkpoint of `step` is to be written. kConflict: a gang that is
// not over uses the key. kInvalid: there is such a step already, or a newer one, from which a gang would start instead.
Result<Fence> BeginNewCheckpoint(const std::shared_ptr<Store>& store, const std::string& space,
                                 const std::string& key, uint64_t step);
// kConflict: a gang has begun to use the key meanwhile. Whatever the error, nothing of it is visible; but after
// kUnavailable it may be committed all the same.
Status CommitNewCheckpoint(const std::shared_ptr<Store>& store, const std::string& space,
                           const Manifest& manifest, const Retention& retention);
// Removes what has been written of one that is not to be committed.
void RemoveNewCheckpoint(Store& store, const std::string& space, const Manifest& manifest);

}  // namespace muster
