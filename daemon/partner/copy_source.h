// A shard, or parity of it, at another node's daemon: what it has, and then the chunks of it that are wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "ceph/catalog/manifest.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/copies.h"
#include "daemon/partner/stream.h"

namespace muster {

struct CopySource {
  std::unique_ptr<PartnerStream> stream;
  Shard shard;
  std::vector<uint64_t> present;  // runs of its chunks
  std::vector<uint32_t> with;     // ranks; empty: the chunks are as they are, else see ParityOf

  // From here on the bytes of these come, chunk after chunk. `runs` is some of `present`.
  Status Want(const std::vector<uint64_t>& runs);
};

// Blocks. kNotFound: it has nothing of it now, and can be asked again on the same stream; else that is taken. `background`:
// the answers may come behind everything else.
Result<CopySource> AskForSource(std::unique_ptr<PartnerStream>& stream, const CopyName& name, bool background,
                                uint64_t max_shard_bytes);
// The same at a node. `urgency` is that of the answers too.
Result<CopySource> OpenSource(const std::string& node, uint16_t port, Urgency urgency, const CopyName& name,
                              uint64_t max_shard_bytes, const std::shared_ptr<const Cancel>& cancel);

}  // namespace muster
