// Makes a lost node's shard again, out of what the other nodes of its group have.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/copies.h"
#include "daemon/partner/copy_fetch.h"
#include "daemon/partner/parity_group.h"

namespace muster {

// Blocks. `group`: as the shard's node saw it when it saved. Every part is made by a thread of its own. As with FetchCopy what
// cannot be had or is wrong is left out; parity of which a chunk is missing is of no use for that row only.
Result<FetchedCopy> FetchFromGroup(const ParityGroup& group, uint16_t port, const CopyName& name,
                                   uint64_t max_shard_bytes, const std::shared_ptr<const Cancel>& cancel);

}  // namespace muster
