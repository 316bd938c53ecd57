#include <utility>

#include "daemon/cli/checkpoint_transfer.h"
#include "daemon/cli/progress.h"

namespace muster::cli {

Result<std::vector<Verified>> VerifyCheckpoints(MusterdSession& session, const std::string& key,
                                                const std::vector<uint64_t>& steps) {
  std::vector<Verified> found;
  for (const uint64_t step : steps) {
    Verified verified;
    verified.step = step;
    const auto bad = [&](const Error& error) {
      // kInvalid: of a newer version, which is no reason not to look at the others.
      if (error.code != Errc::kCorrupt && error.code != Errc::kNotFound && error.code != Errc::kInvalid)
        return false;
      verified.removed = error.code == Errc::kNotFound;
      verified.reason = error.message;
      return true;
    };
    const auto checkpoint = session.OpenCheckpoint(key, step);
    if (!checkpoint && !bad(checkpoint.error())) return checkpoint.error();
    if (checkpoint) {
      verified.bytes = checkpoint->bytes;
      Progress progress("verify step " + std::to_string(step), checkpoint->bytes);
      for (uint32_t rank = 0; rank < checkpoint->world_size && verified.reason.empty(); ++rank) {
        const auto bytes = session.Verify(rank);
        if (!bytes && !bad(bytes.error())) return bytes.error();
        if (bytes) progress.Add(*bytes);
      }
    }
    found.push_back(std::move(verified));
  }
  return found;
}

}  // namespace muster::cli
