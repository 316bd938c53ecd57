// Gets a shard's copy back from the node that keeps it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "ceph/catalog/manifest.h"
#include "daemon/partner/cancel.h"
#include "daemon/partner/copies.h"

namespace muster {

// What came, every chunk verified: all of it, and the memory is sealed, or a part.
struct FetchedCopy {
  Shard shard;
  UniqueFd memory;         // of all the shard's bytes
  std::vector<bool> have;  // of each chunk, whether it is in there
  uint64_t bytes = 0;      // that are in there
  std::string problem;     // why not all; "": all

  [[nodiscard]] bool Whole() const { return bytes == shard.bytes; }
};

// Blocks. A partner that proves slow, dead or wrong after a while has given what it has given. The digests are those that
// the node had which saved the shard. An error: nothing came; kNotFound: it has no copy of it.
Result<FetchedCopy> FetchCopy(const std::string& partner, uint16_t port, const CopyName& name,
                              uint64_t max_shard_bytes, std::shared_ptr<const Cancel> cancel);

// What one that comes from several nodes has in common with that.
using FetchClock = std::chrono::steady_clock;
// Whether so many bytes since then are too few to wait for more.
bool FetchTooSlow(FetchClock::time_point begun, uint64_t bytes);
// The copy with as much as came of it, `filled` with what ended it; or an error, when that is nothing.
Result<FetchedCopy> Finished(FetchedCopy copy, Status filled);

}  // namespace muster
