// All that a node's daemon can give other nodes of shards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/manifest.h"
#include "daemon/partner/copies.h"
#include "daemon/partner/own_shards.h"
#include "daemon/partner/parity_parts.h"

namespace muster {

class PartnerStream;

// A shard of which there are chunks, or parity of them.
struct Supply {
  Shard shard;
  std::vector<uint64_t> present;  // runs of chunks
  std::vector<uint32_t> with;     // as in CopySource
  // The bytes of a chunk that is present.
  std::function<Status(PartnerStream& stream, uint64_t chunk)> send;
};

// Thread-safe.
struct PartnerStock {
  std::shared_ptr<PartnerCopies> copies;  // of other nodes' shards
  std::shared_ptr<ParityParts> parity;    // of the same
  std::shared_ptr<OwnShards> own;

  // kNotFound: there is nothing of it.
  [[nodiscard]] Result<Supply> Find(const CopyName& name) const;
};

}  // namespace muster
